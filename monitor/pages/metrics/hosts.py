"""Metrics of hosts and of the NVML calls, from the newest snapshots."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from monitor.facts.readings import HostReading, Snapshot
from monitor.pages.metrics.families import Families, Labels
from monitor.pages.metrics.gpus import is_fresh

Reader = Callable[[HostReading], float | None]
NVML_FAULTS = "Successive sweeps that read no GPU because of a fault."


def add_host(into: Families, snapshot: Snapshot, now: datetime) -> None:
    """The age of the snapshot, always; the readings of the host while they are fresh."""
    labels = {"host": snapshot.host.name}
    simulated = snapshot.probe == "simulated"
    age = max(0.0, (now - snapshot.at).total_seconds())
    into.gauge("gpucoord_snapshot_age_seconds", "Age of the newest snapshot.", labels, age)
    into.counter("gpucoord_snapshots_total", "Snapshots taken.", labels, snapshot.seq)
    help_text = "NVML calls that returned an error."
    into.counter("nvml_query_errors_total", help_text, labels, snapshot.query_errors)
    help_text = "Failed initialisations of NVML."
    into.counter("nvml_init_failures_total", help_text, labels, snapshot.init_failures)
    help_text = "Per-process samples of the driver that were invalid or referred to unlisted PIDs."
    into.counter("gpucoord_dropped_statements_total", help_text, labels, snapshot.dropped)
    into.gauge("gpucoord_simulated", "1 if the GPUs are simulated.", labels, simulated)
    if not is_fresh(snapshot, now):
        return
    sample_labels = {**labels, "probe": snapshot.probe}
    into.gauge(
        "gpucoord_probe_up", "1 while GPUs can be read.", sample_labels, snapshot.problem is None
    )
    into.gauge("gpucoord_probe_failures", NVML_FAULTS, sample_labels, snapshot.failures)
    help_text = "Time since the use of the CPUs fell below 5 %; 0 while they are in use."
    idle_s = snapshot.host.cpu_idle_s(snapshot.at)
    into.gauge("gpucoord_host_cpu_idle_seconds", help_text, labels, idle_s)
    for name, help_text, read in GAUGES:
        into.gauge(name, help_text, labels, read(snapshot.host))
    for name, help_text, read in COUNTERS:
        into.counter(name, help_text, labels, read(snapshot.host))
    _add_disks(into, snapshot.host, labels)
    _add_pressure(into, snapshot.host, labels)


def add_costs(into: Families, snapshot: Snapshot) -> None:
    """Duration of NVML calls, as measured by the sampler."""
    for cost in snapshot.costs:
        labels = {"host": snapshot.host.name, "call": cost.call}
        help_text = "Duration of the latest calls: median and 99th percentile."
        for part, ms in (("p50", cost.p50_ms), ("p99", cost.p99_ms)):
            sample_labels = {**labels, "stat": part}
            into.gauge("gpucoord_nvml_call_seconds", help_text, sample_labels, ms / 1000)
        help_text = "Calls since the sampler process started."
        into.counter("gpucoord_nvml_calls_total", help_text, labels, cost.count)
        help_text = "Failed calls since the sampler process started."
        into.counter("gpucoord_nvml_call_errors_total", help_text, labels, cost.errors)
        help_text = "The call is made once per this many sweeps; more than 1 while it is slow."
        into.gauge("gpucoord_nvml_call_sweeps", help_text, labels, cost.every)


def _add_disks(into: Families, host: HostReading, labels: Labels) -> None:
    for disk in host.disks:
        sample_labels = {**labels, "mount": disk.mount}
        into.gauge(
            "gpucoord_host_disk_size_bytes", "Size of the disk.", sample_labels, disk.total_bytes
        )
        into.gauge(
            "gpucoord_host_disk_free_bytes",
            "Free space on the disk.",
            sample_labels,
            disk.free_bytes,
        )


def _add_pressure(into: Families, host: HostReading, labels: Labels) -> None:
    """Kernel pressure stall information; `some`: at least one task waited, `full`: all did."""
    pressure = host.pressure
    help_text = "Share of the last 10 s in which tasks waited for the resource (PSI)."
    for resource, kind, value in (
        ("cpu", "some", pressure.cpu_some_pct),
        ("memory", "some", pressure.memory_some_pct),
        ("memory", "full", pressure.memory_full_pct),
        ("io", "some", pressure.io_some_pct),
        ("io", "full", pressure.io_full_pct),
    ):
        sample_labels = {**labels, "resource": resource, "kind": kind}
        into.gauge("gpucoord_host_pressure_percent", help_text, sample_labels, value)


GAUGES: tuple[tuple[str, str, Reader], ...] = (
    ("gpucoord_host_cpus", "Logical CPUs.", lambda h: h.cpu_count),
    ("gpucoord_host_cpu_utilization_percent", "CPU time in use.", lambda h: h.cpu_pct),
    ("gpucoord_host_load1", "Load average over one minute.", lambda h: h.load_1),
    ("gpucoord_host_memory_total_bytes", "Total memory.", lambda h: h.memory_total_bytes),
    (
        "gpucoord_host_memory_available_bytes",
        "Memory available without swapping.",
        lambda h: h.memory_available_bytes,
    ),
    ("gpucoord_host_swap_total_bytes", "Swap space.", lambda h: h.swap_total_bytes),
    ("gpucoord_host_swap_used_bytes", "Swap space in use.", lambda h: h.swap_used_bytes),
)
COUNTERS: tuple[tuple[str, str, Reader], ...] = (
    (
        "gpucoord_host_disk_read_bytes_total",
        "Bytes read from disks since the host started.",
        lambda h: h.counters.disk_read_bytes,
    ),
    (
        "gpucoord_host_disk_written_bytes_total",
        "Bytes written to disks since the host started.",
        lambda h: h.counters.disk_written_bytes,
    ),
)
