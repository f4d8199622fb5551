"""Metrics of GPUs and their health, from the newest snapshots. Stale snapshots are omitted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timedelta

from prometheus_client import Metric

from monitor.facts.gpu_states import Condition, GpuState, HealthReading
from monitor.facts.readings import GPU_FIELDS, GpuReading, Health, Snapshot
from monitor.gpus.policy import changes

# Collects samples in the Prometheus format. Unknown values are omitted, not reported as 0.


Labels = Mapping[str, str]


class Families:
    """Metrics by family, in the order of their first sample."""

    def __init__(self) -> None:
        self._metrics: dict[str, Metric] = {}

    def gauge(self, name: str, help_text: str, labels: Labels, value: float | None) -> None:
        """Add a sample of a gauge; None adds nothing."""
        self._add("gauge", name, name, help_text, labels, value)

    def counter(self, name: str, help_text: str, labels: Labels, value: float | None) -> None:
        """Add a sample of a counter, whose name ends with _total; None adds nothing."""
        self._add("counter", name.removesuffix("_total"), name, help_text, labels, value)

    def collect(self) -> Iterator[Metric]:
        yield from self._metrics.values()

    def _add(
        self, kind: str, family: str, name: str, help_text: str, labels: Labels, value: float | None
    ) -> None:
        if value is None:
            return
        metric = self._metrics.get(family)
        if metric is None:
            metric = self._metrics[family] = Metric(family, help_text, kind)
        metric.add_sample(name, dict(labels), float(value))


# Older readings do not describe the present. The snapshot's age is exported in any case.
FRESH = timedelta(seconds=15)


def is_fresh(snapshot: Snapshot, now: datetime) -> bool:
    return now - snapshot.at <= FRESH


def add_gpus(into: Families, snapshot: Snapshot, jobs: Mapping[str, int]) -> None:
    """`jobs`: number of open claims by GPU."""
    splits = changes.by_gpu(snapshot)
    for gpu in snapshot.gpus:
        labels = gpu_labels(gpu, snapshot)
        into.gauge("gpu_up", "1 while the GPU answers.", labels, gpu.health is not Health.LOST)
        _add_state(into, gpu, labels)
        if gpu.health is Health.LOST:
            continue
        _add_figures(into, gpu, labels)
        help_text = "Energy used since the driver was loaded."
        joules = None if gpu.energy_mj is None else gpu.energy_mj / 1000
        into.counter("gpu_energy_joules_total", help_text, labels, joules)
        help_text = "Time since the utilisation of the GPU fell below 5 %; 0 while it is in use."
        into.gauge("gpucoord_gpu_idle_seconds", help_text, labels, gpu.idle_s(snapshot.at))
        _add_processes(into, gpu, snapshot, labels)
        split = splits[gpu.uuid]
        help_text = "Share of the GPU's time that gpucoord's jobs use."
        into.gauge("gpucoord_jobs_share_percent", help_text, labels, split.jobs_pct)
        help_text = "Share of the GPU's time that other processes use."
        into.gauge("gpucoord_others_share_percent", help_text, labels, split.others_pct)
        help_text = "Jobs of gpucoord that hold the GPU."
        into.gauge("gpu_jobs_count", help_text, labels, jobs.get(gpu.uuid, 0))


def gpu_labels(gpu: GpuReading, snapshot: Snapshot) -> dict[str, str]:
    """The labels of every GPU metric; simulated="true" marks simulated GPUs."""
    return {
        "gpu": gpu.uuid,
        "index": str(gpu.index),
        "host": snapshot.host.name,
        "name": gpu.name or "",
        "simulated": "true" if snapshot.probe == "simulated" else "false",
    }


def _add_figures(into: Families, gpu: GpuReading, labels: Labels) -> None:
    for figure in GPU_FIELDS:
        value = getattr(gpu, figure.name)
        if figure.gauge and value is not None:
            gauge = figure.gauge
            into.gauge(gauge.name, gauge.help, labels, value * gauge.factor)
    help_text = "Memory that is neither used nor reserved."
    into.gauge("gpu_memory_free_bytes", help_text, labels, _free(gpu))


def _add_state(into: Families, gpu: GpuReading, labels: Labels) -> None:
    if gpu.state is None:
        return
    for state in GpuState:
        sample_labels = {**labels, "state": state.value}
        into.gauge(
            "gpu_state", "1 for the current state of the GPU.", sample_labels, gpu.state is state
        )


def _add_processes(into: Families, gpu: GpuReading, snapshot: Snapshot, labels: Labels) -> None:
    if gpu.health is not Health.OK:
        # The process list of a failing GPU is not reliable either.
        return
    by_pid = {process.pid: process for process in snapshot.on(gpu.uuid)}
    ours = sum(process.job_ref is not None for process in by_pid.values())
    help_text = "Processes on the GPU that belong to no job of gpucoord."
    into.gauge("gpu_other_processes_count", help_text, labels, len(by_pid) - ours)
    help_text = "Processes on the GPU that belong to jobs of gpucoord."
    into.gauge("gpu_job_processes_count", help_text, labels, ours)


def add_instances(into: Families, snapshot: Snapshot) -> None:
    """Memory of MIG instances. NVML reports no utilisation for them."""
    gpus = {gpu.uuid: gpu for gpu in snapshot.gpus}
    for instance in snapshot.instances:
        gpu = gpus.get(instance.gpu_uuid)
        if gpu is None:
            continue
        labels = {
            **gpu_labels(gpu, snapshot),
            "instance_uuid": instance.uuid,
            "profile": instance.name or "",
        }
        help_text = "Memory of the MIG instance."
        into.gauge(
            "gpu_instance_memory_total_bytes", help_text, labels, instance.memory_total_bytes
        )
        help_text = "Memory of the MIG instance in use."
        into.gauge("gpu_instance_memory_used_bytes", help_text, labels, instance.memory_used_bytes)


def _free(gpu: GpuReading) -> float | None:
    if gpu.memory_total_bytes is None or gpu.memory_used_bytes is None:
        return None
    used_bytes = gpu.memory_used_bytes + (gpu.memory_reserved_bytes or 0)
    return max(0, gpu.memory_total_bytes - used_bytes)


# The bits of NVML's clock event reasons; the names are stable label values.
CLOCK_REASONS: Mapping[int, str] = {
    0x1: "idle",
    0x2: "application_clocks",
    0x4: "power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal",
    0x40: "hw_thermal",
    0x80: "hw_power_brake",
    0x100: "display_clocks",
}
XIDS = "XID errors reported by the driver"
Counts = Mapping[int, float]


def add_health(into: Families, snapshot: Snapshot, xids: Mapping[str, Counts]) -> None:
    """`xids`: {GPU: {XID code: count}}."""
    healths = {health.gpu_uuid: health for health in snapshot.health}
    for gpu in snapshot.gpus:
        labels = gpu_labels(gpu, snapshot)
        _add_condition(into, gpu, labels)
        _add_xids(into, xids.get(gpu.uuid, {}), labels)
        health = healths.get(gpu.uuid)
        if health is not None and gpu.health is not Health.LOST:
            _add_clocks(into, health, labels)
            _add_memory(into, health, labels)


def _add_condition(into: Families, gpu: GpuReading, labels: Labels) -> None:
    if gpu.condition is None:
        return
    help_text = "1 for the current condition of the GPU; only healthy GPUs get new jobs."
    for condition in Condition:
        sample_labels = {**labels, "condition": condition.value}
        into.gauge("gpu_condition", help_text, sample_labels, gpu.condition is condition)


def _add_xids(into: Families, counts: Counts, labels: Labels) -> None:
    total = sum(counts.values())
    into.counter("gpu_xid_errors_total", f"{XIDS}, in total.", labels, total)
    for code, count in sorted(counts.items()):
        sample_labels = {**labels, "xid": str(code)}
        into.counter("gpu_xid_errors_by_code_total", f"{XIDS}, by code.", sample_labels, count)


def _add_clocks(into: Families, health: HealthReading, labels: Labels) -> None:
    bits = health.clock_reasons
    if bits is None:
        return
    help_text = "1 while this reason limits the clocks of the GPU; hw_ and sw_ reasons are harmful."
    for bit, reason in CLOCK_REASONS.items():
        sample_labels = {**labels, "reason": reason}
        into.gauge("gpu_throttle_reason", help_text, sample_labels, bool(bits & bit))


def _add_memory(into: Families, health: HealthReading, labels: Labels) -> None:
    help_text = "Memory errors since the driver was loaded."
    for kind, count in (
        ("corrected", health.ecc_corrected),
        ("uncorrected", health.ecc_uncorrected),
    ):
        into.counter("gpu_ecc_errors_total", help_text, {**labels, "kind": kind}, count)
    help_text = "Memory rows replaced by spare rows, by the kind of error."
    for kind, count in (
        ("corrected", health.remapped_corrected),
        ("uncorrected", health.remapped_uncorrected),
    ):
        into.gauge("gpu_remapped_rows_count", help_text, {**labels, "kind": kind}, count)
    for name, help_text, read in MEMORY:
        into.gauge(name, help_text, labels, read(health))


MEMORY: tuple[tuple[str, str, Callable[[HealthReading], float | None]], ...] = (
    ("gpu_retired_pages_count", "Memory pages retired.", lambda h: h.retired_pages),
    (
        "gpu_row_remap_pending",
        "1 while a row remapping waits for a reset.",
        lambda h: h.remap_pending,
    ),
    (
        "gpu_row_remap_failed",
        "1 if a row remapping failed because no spare row was left.",
        lambda h: h.remap_failed,
    ),
)
