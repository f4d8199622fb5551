"""Metrics of GPUs, hosts, users, loops, events, incidents and alerts, read from the database."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from django.conf import settings
from django.db.models import F, QuerySet
from django.utils import timezone
from prometheus_client import Metric

from monitor.facts.gpus import Condition, GpuState, HealthReading
from monitor.facts.incidents import SEVERITIES, TITLES
from monitor.facts.readings import GPU_FIELDS, GpuReading, Health, HostReading, Snapshot
from monitor.gpus.policy import changes
from monitor.gpus.rows import snapshot as snapshot_rows
from monitor.incidents import rows as incident_open
from monitor.incidents.alerts import steps
from monitor.journal.facts import EvictionReason
from monitor.journal.rows import counters
from monitor.models import Channel, Claim, Lease, Message
from monitor.runtime.policy import LoopFact, LoopState, judge
from monitor.runtime.probes import service_state
from monitor.runtime.rows import leases
from monitor.runtime.rows.database import compiled_once
from monitor.usage.rows import processes as process_rows

# Metrics of GPUs and their health, from the newest snapshots. Stale snapshots are omitted.


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


COMMON_EVICTIONS = (
    EvictionReason.PREEMPTION,
    EvictionReason.OWNER_PRESENT,
    EvictionReason.MODEL,
)
# Loops of a host that has not ticked for longer are omitted: it was renamed or removed.
GONE = timedelta(days=7)


def add_metrics(into: Families, now: datetime) -> None:
    snapshots = snapshot_rows.newest_all()
    jobs, xids = Counter(claim.gpu_uuid for claim in _claims()), counters.xids()
    for snapshot in snapshots:
        add_host(into, snapshot, now)
        if is_fresh(snapshot, now):
            add_gpus(into, snapshot, jobs)
            add_instances(into, snapshot)
            add_health(into, snapshot, xids)
            add_costs(into, snapshot)
    _add_users(into)
    _add_loops(into, now)
    hosts = {snapshot.host.name for snapshot in snapshots}
    _add_events(into)
    _add_evictions(into, snapshots)
    add_incidents(into, hosts)
    add_alerts(into)
    _add_service(into)


def _add_users(into: Families) -> None:
    """GPU usage of each user, in jobs and outside them; known / held is the measured fraction."""
    totals = process_rows.counter_totals()
    for name, quantity, help_text in USER_COUNTERS:
        for host, person, simulated, value in totals[quantity]:
            labels = {"host": host, "user": person, "simulated": str(simulated).lower()}
            into.counter(name, help_text, labels, value)


def _add_loops(into: Families, now: datetime) -> None:
    for row in _leases():
        fact = leases.fact(row)
        age = fact.age_s(now)
        if age is not None and age > GONE.total_seconds():
            continue
        labels = {"host": row.host, "loop": row.loop}
        is_ok = judge(fact, now) is LoopState.OK
        help_text = "1 while the loop ticks on time and without errors."
        into.gauge("gpucoord_loop_ok", help_text, labels, is_ok)
        help_text = "Time since the last successful tick."
        into.gauge("gpucoord_loop_tick_age_seconds", help_text, labels, age)
        into.counter("gpucoord_loop_ticks_total", "Ticks of the loop.", labels, row.ticks)
        _add_lateness(into, fact, labels)


def _add_lateness(into: Families, fact: LoopFact, labels: dict[str, str]) -> None:
    help_text = "Delay of the loop's latest ticks: median and 99th percentile."
    for part, ms in (("p50", fact.lateness_p50_ms), ("p99", fact.lateness_p99_ms)):
        seconds = None if ms is None else ms / 1000
        sample_labels = {**labels, "stat": part}
        into.gauge("gpucoord_loop_lateness_seconds", help_text, sample_labels, seconds)


def _add_events(into: Families) -> None:
    for row in counters.of(counters.EVENTS):
        labels = {"host": row.host, "kind": row.subject}
        into.counter("gpucoord_events_total", "Events, by kind.", labels, row.value)


def _add_evictions(into: Families, snapshots: Collection[Snapshot]) -> None:
    """A series that exists from the start makes the first eviction visible as an increase."""
    simulated = {s.host.name for s in snapshots if s.probe == "simulated"}
    zeros = {
        (snapshot.host.name, gpu.uuid, reason): 0.0
        for snapshot in snapshots
        for gpu in snapshot.gpus
        if gpu.health is not Health.LOST
        for reason in COMMON_EVICTIONS
    }
    for (host, uuid, reason), count in (zeros | counters.evictions()).items():
        is_simulated = str(host in simulated).lower()
        labels = {"host": host, "gpu": uuid, "reason": reason.value, "simulated": is_simulated}
        help_text = "Running jobs and models that had to leave the GPU, by reason."
        into.counter("gpu_evictions_total", help_text, labels, count)


def _add_service(into: Families) -> None:
    """The service's processes on this host, from the last report of the supervisor."""
    state = service_state.read(Path(settings.DATA) / "run")
    if state is None:
        return
    labels = {"host": settings.CONFIG.node}
    help_text = "Round-trip time of the latest canary task through the task queue."
    into.gauge("gpucoord_task_roundtrip_seconds", help_text, labels, state.canary_s)
    help_text = "Restarts of a service process since the service started."
    for child in state.children:
        sample_labels = {**labels, "process": child.name}
        into.counter("gpucoord_process_restarts_total", help_text, sample_labels, child.restarts)
    help_text = "Whether the service listens on this port or socket (1), or can't (0)."
    for listener in state.listeners:
        sample_labels = {**labels, "listener": listener.name}
        into.gauge("gpucoord_listener_up", help_text, sample_labels, float(not listener.problem))


USER_COUNTERS = (
    ("gpucoord_user_gpu_seconds_total", "sm_s", "GPU time that the user's processes used."),
    (
        "gpucoord_user_gpu_held_seconds_total",
        "held_s",
        "Time that the user's processes were on GPUs.",
    ),
    (
        "gpucoord_user_gpu_known_seconds_total",
        "known_s",
        "Time on GPUs for which the usage was measured.",
    ),
    (
        "gpucoord_user_energy_joules_total",
        "joules",
        "Energy used by the user's processes above idle power.",
    ),
)


def add_incidents(into: Families, hosts: Collection[str]) -> None:
    rows = incident_open.not_snoozed(timezone.now())
    counts = Counter((row.host, row.rule, row.severity) for row in rows if row.lead_id is None)
    none = {(host, rule, level) for host in hosts for rule in TITLES for level in SEVERITIES}
    help_text = (
        "Open incidents that are not muted; info: no job waits, warning: jobs wait, error: jobs"
        " have waited for long."
    )
    for host, rule, severity in sorted(none | set(counts)):
        labels = {"host": host, "rule": rule, "severity": severity}
        into.gauge("gpucoord_incidents_open", help_text, labels, counts[host, rule, severity])


def add_alerts(into: Families) -> None:
    """Alert delivery by service, such as Slack. Names and addresses of channels stay private."""
    rows = _channels()
    channels = sorted({row.service for row in rows})
    failing = Counter(row.service for row in rows if row.failing_since)
    help_text = "Enabled alert channels whose deliveries fail."
    for service in channels:
        into.gauge(
            "gpucoord_alert_channels_failing", help_text, {"service": service}, failing[service]
        )
    counts = Counter(message.service for message in _waiting_messages())
    help_text = "Messages not sent yet, including those that wait for the end of quiet hours."
    for service in channels:
        into.gauge(
            "gpucoord_alert_messages_waiting", help_text, {"service": service}, counts[service]
        )
    _add_tries(into, channels)


@compiled_once
def _claims() -> QuerySet[Claim]:
    return Claim.objects.filter(until_at__isnull=True).only("gpu_uuid")


@compiled_once
def _leases() -> QuerySet[Lease]:
    return Lease.objects.order_by("host", "loop")


@compiled_once
def _channels() -> QuerySet[Channel]:
    return Channel.objects.filter(enabled=True, owner=None).only("service", "failing_since")


@compiled_once
def _waiting_messages() -> QuerySet[Any]:
    """Each with the `service` of its channel."""
    rows = Message.objects.filter(state=Message.State.WAITING, channel__enabled=True)
    return rows.annotate(service=F("channel__service")).only("pk").order_by()


def _add_tries(into: Families, services: Collection[str]) -> None:
    results = (steps.DELIVERED, steps.FAILED)
    tries = {(service, result): 0.0 for service in services for result in results}
    for row in counters.of(counters.ALERTS):
        service, _, result = row.subject.rpartition(" ")
        tries[service, result] = tries.get((service, result), 0.0) + row.value
    help_text = "Attempts to deliver a message to a channel, by result."
    for (service, result), count in sorted(tries.items()):
        labels = {"service": service, "result": result}
        into.counter("gpucoord_alert_tries_total", help_text, labels, count)


# Metrics of hosts and of the NVML calls, from the newest snapshots.

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
