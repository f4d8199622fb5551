"""Metrics of GPUs, from the newest snapshots; those of a snapshot that is old are left out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta

from monitor.gpu_states import GpuState
from monitor.metric_families import Families, Labels
from monitor.readings import GpuReading, Health, Snapshot

# An older reading says nothing of now. The snapshot's age is told all the same.
FRESH = timedelta(seconds=15)

Reader = Callable[[GpuReading], float | None]


def is_fresh(snapshot: Snapshot, now: datetime) -> bool:
    return now - snapshot.at <= FRESH


def add_gpus(into: Families, snapshot: Snapshot, jobs: Mapping[str, int]) -> None:
    """`jobs`: how many hold a claim on each GPU."""
    for gpu in snapshot.gpus:
        labels = gpu_labels(gpu, snapshot)
        into.gauge("gpu_up", "1 while the GPU answers.", labels, gpu.health is not Health.LOST)
        _add_state(into, gpu, labels)
        if gpu.health is Health.LOST:
            continue
        for name, what, read in GAUGES:
            into.gauge(name, what, labels, read(gpu))
        what = "Energy used since the driver was loaded."
        joules = None if gpu.energy_mj is None else gpu.energy_mj / 1000
        into.counter("gpu_energy_joules_total", what, labels, joules)
        _add_processes(into, gpu, snapshot, labels)
        what = "gpucoord's jobs that may use the GPU now."
        into.gauge("gpu_jobs_count", what, labels, jobs.get(gpu.uuid, 0))


def gpu_labels(gpu: GpuReading, snapshot: Snapshot) -> dict[str, str]:
    """The labels of each metric of a GPU; simulated="true" marks what no real GPU ever did."""
    return {
        "gpu": gpu.uuid,
        "index": str(gpu.index),
        "host": snapshot.host.name,
        "name": gpu.name or "",
        "simulated": "true" if snapshot.probe == "simulated" else "false",
    }


def _add_state(into: Families, gpu: GpuReading, labels: Labels) -> None:
    if gpu.state is None:
        return
    for state in GpuState:
        mark = {**labels, "state": state.value}
        into.gauge("gpu_state", "1 for the state that the GPU is in.", mark, gpu.state is state)


def _add_processes(into: Families, gpu: GpuReading, snapshot: Snapshot, labels: Labels) -> None:
    if gpu.health is not Health.OK:
        # Its list of processes may be as wrong as its other answers.
        return
    found = {process.pid: process for process in snapshot.on(gpu.uuid)}
    ours = sum(process.job_ref is not None for process in found.values())
    what = "Processes on the GPU that are not of gpucoord's jobs."
    into.gauge("gpu_other_processes_count", what, labels, len(found) - ours)
    what = "Processes on the GPU that are of gpucoord's jobs."
    into.gauge("gpu_job_processes_count", what, labels, ours)


def add_instances(into: Families, snapshot: Snapshot) -> None:
    """MIG instances: how busy one is can't be told, only its memory."""
    gpus = {gpu.uuid: gpu for gpu in snapshot.gpus}
    for one in snapshot.instances:
        gpu = gpus.get(one.gpu_uuid)
        if gpu is None:
            continue
        labels = {**gpu_labels(gpu, snapshot), "instance_uuid": one.uuid, "profile": one.name or ""}
        what = "Memory of the MIG instance."
        into.gauge("gpu_instance_memory_total_bytes", what, labels, one.memory_total_bytes)
        what = "Memory of the MIG instance in use."
        into.gauge("gpu_instance_memory_used_bytes", what, labels, one.memory_used_bytes)


def _free(gpu: GpuReading) -> float | None:
    if gpu.memory_total_bytes is None or gpu.memory_used_bytes is None:
        return None
    taken = gpu.memory_used_bytes + (gpu.memory_reserved_bytes or 0)
    return max(0, gpu.memory_total_bytes - taken)


def _hertz(mhz: int | None) -> float | None:
    return None if mhz is None else mhz * 1e6


GAUGES: tuple[tuple[str, str, Reader], ...] = (
    ("gpu_temperature_celsius", "Temperature of the GPU.", lambda g: g.temperature_c),
    (
        "gpu_utilization_percent",
        "Share of the last moments in which the GPU ran something.",
        lambda g: g.utilization_pct,
    ),
    (
        "gpu_memory_utilization_percent",
        "Share of the last moments in which its memory was read or written.",
        lambda g: g.memory_utilization_pct,
    ),
    ("gpu_power_watts", "Power drawn.", lambda g: g.power_w),
    ("gpu_power_limit_watts", "Power that it may draw.", lambda g: g.power_limit_w),
    ("gpu_memory_total_bytes", "Memory of the GPU.", lambda g: g.memory_total_bytes),
    (
        "gpu_memory_used_bytes",
        "Memory in use, without what the driver reserves.",
        lambda g: g.memory_used_bytes,
    ),
    (
        "gpu_memory_reserved_bytes",
        "Memory that the driver keeps for itself.",
        lambda g: g.memory_reserved_bytes,
    ),
    (
        "gpu_memory_orphaned_bytes",
        "Memory in use that no listed process holds.",
        lambda g: g.orphaned_bytes,
    ),
    ("gpu_memory_free_bytes", "Memory that is neither used nor reserved.", _free),
    ("gpu_sm_clock_hertz", "Clock of its processors.", lambda g: _hertz(g.sm_clock_mhz)),
    ("gpu_memory_clock_hertz", "Clock of its memory.", lambda g: _hertz(g.memory_clock_mhz)),
)
