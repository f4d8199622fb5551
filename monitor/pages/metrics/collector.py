"""Metrics of GPUs, hosts, users, loops, events, incidents and alerts, read from the database."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from django.conf import settings
from django.db.models import F, QuerySet
from django.utils import timezone

from monitor.facts.readings import Health, HostReading, Snapshot
from monitor.gpus.snapshot import rows as snapshot_rows
from monitor.incidents.alerts.policy import SEVERITIES
from monitor.incidents.alerts.steps import outbox
from monitor.incidents.facts import TITLES
from monitor.incidents.rows import open as incident_open
from monitor.journal.facts import EvictionReason
from monitor.journal.rows import counters
from monitor.models import Channel, Claim, Lease, Message
from monitor.pages.metrics.gpus import (
    Families,
    Labels,
    add_gpus,
    add_health,
    add_instances,
    is_fresh,
)
from monitor.runtime.policy import LoopFact, LoopState, judge
from monitor.runtime.probes import service_state
from monitor.runtime.rows import leases
from monitor.runtime.rows.prepared import compiled_once
from monitor.usage.rows import processes as process_rows

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
    results = (outbox.DELIVERED, outbox.FAILED)
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
