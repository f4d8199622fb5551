"""Metrics of hosts and of how they are read, from the newest snapshots."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from monitor.gpu_metrics import is_fresh
from monitor.metric_families import Families, Labels
from monitor.readings import HostReading, Snapshot

Reader = Callable[[HostReading], float | None]
NVML_FAULTS = "Sweeps in a row that saw no GPU at all because of a fault."


def add_host(into: Families, snapshot: Snapshot, now: datetime) -> None:
    """How old the readings are, always; what they say of the host, while they are new."""
    labels = {"host": snapshot.host.name}
    simulated = snapshot.probe == "simulated"
    age = max(0.0, (now - snapshot.at).total_seconds())
    into.gauge("gpucoord_snapshot_age_seconds", "Age of the newest readings.", labels, age)
    into.counter("gpucoord_snapshots_total", "Readings taken.", labels, snapshot.seq)
    what = "Questions to NVML that it answered with an error."
    into.counter("nvml_query_errors_total", what, labels, snapshot.query_errors)
    what = "Tries to begin with NVML that failed."
    into.counter("nvml_init_failures_total", what, labels, snapshot.init_failures)
    what = "Statements of the driver that made no sense or named nobody."
    into.counter("gpucoord_dropped_statements_total", what, labels, snapshot.dropped)
    into.gauge("gpucoord_simulated", "1 where no GPU is real.", labels, simulated)
    if not is_fresh(snapshot, now):
        return
    mark = {**labels, "probe": snapshot.probe}
    into.gauge("gpucoord_probe_up", "1 while GPUs can be read.", mark, snapshot.problem is None)
    into.gauge("gpucoord_probe_failures", NVML_FAULTS, mark, snapshot.failures)
    for name, what, read in GAUGES:
        into.gauge(name, what, labels, read(snapshot.host))
    for name, what, read in COUNTERS:
        into.counter(name, what, labels, read(snapshot.host))
    _add_disks(into, snapshot.host, labels)
    _add_pressure(into, snapshot.host, labels)


def add_costs(into: Families, snapshot: Snapshot) -> None:
    """What each question to NVML costs, as the process that samples measures it."""
    for cost in snapshot.costs:
        labels = {"host": snapshot.host.name, "call": cost.call}
        what = "Time of the newest calls: the median and the 99th percentile."
        for quantile, ms in (("0.5", cost.p50_ms), ("0.99", cost.p99_ms)):
            mark = {**labels, "quantile": quantile}
            into.gauge("gpucoord_nvml_call_seconds", what, mark, ms / 1000)
        what = "Calls since the process that samples began."
        into.counter("gpucoord_nvml_calls_total", what, labels, cost.count)
        what = "Calls since then that failed."
        into.counter("gpucoord_nvml_call_errors_total", what, labels, cost.errors)
        what = "It is asked at each so many sweeps; more than 1 while it is slow."
        into.gauge("gpucoord_nvml_call_sweeps", what, labels, cost.every)


def _add_disks(into: Families, host: HostReading, labels: Labels) -> None:
    for disk in host.disks:
        mark = {**labels, "mount": disk.mount}
        into.gauge("gpucoord_host_disk_size_bytes", "Size of the disk.", mark, disk.total_bytes)
        into.gauge("gpucoord_host_disk_free_bytes", "Room on the disk.", mark, disk.free_bytes)


def _add_pressure(into: Families, host: HostReading, labels: Labels) -> None:
    """As the kernel says it: `some` = at least one task waited, `full` = all of them."""
    seen = host.pressure
    what = "Share of the last 10 s in which tasks waited for the resource (PSI)."
    for resource, kind, value in (
        ("cpu", "some", seen.cpu_some_pct),
        ("memory", "some", seen.memory_some_pct),
        ("memory", "full", seen.memory_full_pct),
        ("io", "some", seen.io_some_pct),
        ("io", "full", seen.io_full_pct),
    ):
        mark = {**labels, "resource": resource, "kind": kind}
        into.gauge("gpucoord_host_pressure_percent", what, mark, value)


GAUGES: tuple[tuple[str, str, Reader], ...] = (
    ("gpucoord_host_cpus", "Logical CPUs.", lambda h: h.cpu_count),
    ("gpucoord_host_cpu_utilization_percent", "CPU time in use.", lambda h: h.cpu_pct),
    ("gpucoord_host_load1", "Load average of a minute.", lambda h: h.load_1),
    ("gpucoord_host_memory_total_bytes", "Memory.", lambda h: h.memory_total_bytes),
    (
        "gpucoord_host_memory_available_bytes",
        "Memory that can be had without swapping.",
        lambda h: h.memory_available_bytes,
    ),
    ("gpucoord_host_swap_total_bytes", "Swap space.", lambda h: h.swap_total_bytes),
    ("gpucoord_host_swap_used_bytes", "Swap space in use.", lambda h: h.swap_used_bytes),
)
COUNTERS: tuple[tuple[str, str, Reader], ...] = (
    (
        "gpucoord_host_disk_read_bytes_total",
        "Read from disks since the host started.",
        lambda h: h.counters.disk_read_bytes,
    ),
    (
        "gpucoord_host_disk_written_bytes_total",
        "Written to disks since the host started.",
        lambda h: h.counters.disk_written_bytes,
    ),
)
