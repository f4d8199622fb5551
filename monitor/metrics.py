"""Metrics of the monitor: GPUs, hosts, loops, and what has happened so far; all from rows."""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timedelta
from pathlib import Path

from django.conf import settings

from monitor import leases, service_state, store, tallies, user_tallies
from monitor.gpu_metrics import add_gpus, add_instances, is_fresh
from monitor.health_metrics import add_health
from monitor.host_metrics import add_costs, add_host
from monitor.judging_metrics import add_alerts, add_incidents
from monitor.metric_families import Families
from monitor.models import Claim, Lease
from monitor.policy.loop_health import LoopFact, LoopState, judge

# The kinds of the events that stand for an eviction.
EVICTED = ("JOB_EVICTED", "JOB_PREEMPTED")
# A host that has been silent for so long was renamed or taken away.
GONE = timedelta(days=7)


def add_metrics(into: Families, now: datetime) -> None:
    snapshots = store.newest_all()
    claims = Claim.objects.filter(until_at__isnull=True)
    jobs, xids = Counter(claims.values_list("gpu_uuid", flat=True)), tallies.xids()
    for snapshot in snapshots:
        add_host(into, snapshot, now)
        if is_fresh(snapshot, now):
            add_gpus(into, snapshot, jobs)
            add_instances(into, snapshot)
            add_health(into, snapshot, xids)
            add_costs(into, snapshot)
    _add_people(into)
    _add_loops(into, now)
    hosts = {snapshot.host.name for snapshot in snapshots}
    _add_events(into, hosts)
    add_incidents(into, hosts)
    add_alerts(into)
    _add_service(into)


def _add_people(into: Families) -> None:
    """What people used, whether as jobs or not; known ÷ held says how much of it was measured."""
    for name, quantity, what in PEOPLE:
        for host, person, simulated, value in user_tallies.totals(quantity):
            labels = {"host": host, "user": person, "simulated": str(simulated).lower()}
            into.counter(name, what, labels, value)


def _add_loops(into: Families, now: datetime) -> None:
    for row in Lease.objects.order_by("host", "loop"):
        fact = leases.fact(row)
        age = fact.age_s(now)
        if age is not None and age > GONE.total_seconds():
            continue
        labels = {"host": row.host, "loop": row.loop}
        is_ok = judge(fact, now) is LoopState.OK
        what = "1 while the loop ticks in time and without faults."
        into.gauge("gpucoord_loop_ok", what, labels, is_ok)
        what = "Time since the last good tick."
        into.gauge("gpucoord_loop_tick_age_seconds", what, labels, age)
        into.counter("gpucoord_loop_ticks_total", "Ticks of the loop.", labels, row.ticks)
        _add_lateness(into, fact, labels)


def _add_lateness(into: Families, fact: LoopFact, labels: dict[str, str]) -> None:
    what = "How late the loop's last ticks began: the median and the 99th percentile."
    for quantile, ms in (("0.5", fact.lateness_p50_ms), ("0.99", fact.lateness_p99_ms)):
        seconds = None if ms is None else ms / 1000
        mark = {**labels, "quantile": quantile}
        into.gauge("gpucoord_loop_lateness_seconds", what, mark, seconds)


def _add_events(into: Families, hosts: set[str]) -> None:
    evictions = dict.fromkeys(sorted(hosts), 0.0)
    for tally in tallies.of(tallies.EVENTS):
        labels = {"host": tally.host, "kind": tally.subject}
        into.counter("gpucoord_events_total", "Events, by kind.", labels, tally.value)
        if tally.subject in EVICTED:
            evictions[tally.host] = evictions.get(tally.host, 0.0) + tally.value
    for host, count in evictions.items():
        what = "Jobs that had to leave their GPUs for others."
        into.counter("gpu_evictions_total", what, {"host": host}, count)


def _add_service(into: Families) -> None:
    """The processes of this host's service, as their supervisor last told."""
    state = service_state.read(Path(settings.DATA) / "run")
    if state is None:
        return
    labels = {"host": settings.CONFIG.node}
    what = "Time that a task took through the queue, the last time it was tried."
    into.gauge("gpucoord_task_roundtrip_seconds", what, labels, state.canary_s)
    what = "Restarts of a process of the service since the service started."
    for child in state.children:
        mark = {**labels, "process": child.name}
        into.counter("gpucoord_process_restarts_total", what, mark, child.restarts)


PEOPLE = (
    ("gpucoord_user_gpu_seconds_total", "sm_s", "GPU time that the user's processes used."),
    ("gpucoord_user_gpu_held_seconds_total", "held_s", "Time that they were on GPUs."),
    (
        "gpucoord_user_gpu_known_seconds_total",
        "known_s",
        "Of the time on GPUs, that in which their use was measured.",
    ),
    ("gpucoord_user_energy_joules_total", "joules", "Their share of the GPUs' energy."),
)
