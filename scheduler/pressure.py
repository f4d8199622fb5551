"""The controller's part that says what starts the machine's load allows, and tells people."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial

from django.db import transaction
from django.db.models import QuerySet

from monitor import constraints, events, incidents, policies, store
from monitor.policy.constraints import Constraint, ConstraintPolicy, gauges
from monitor.readings import Snapshot
from scheduler import modes, throttling
from scheduler.jobs import CLASSES, JobState, PriorityClass
from scheduler.models import Job
from scheduler.plans import Throttle
from scheduler.policy import deferring, mode
from scheduler.policy.adaptive import AdaptivePolicy
from scheduler.policy.mode import ModePolicy
from scheduler.policy.pressure import Deferral, PressurePolicy
from scheduler.policy.throttle import Around, Memory, Policies, look
from scheduler.policy.utilisation import UtilisationPolicy
from scheduler.policy.windows import WindowPolicy

# The waiting jobs that are looked at to know what they wait for, and that a log line names.
FIRST = 10
BOUND = {"GpuMemory": "memory", "OwnerPresent": "owner"}
FIRST_LOOK_S = 5.0
logger = logging.getLogger(__name__)


class Pressure:
    """A Part: looks once a tick, keeps what it saw in a row."""

    name = "pressure"

    def __init__(self, host: str) -> None:
        self._host = host

    def judge(self, snapshot: Snapshot | None, now: datetime) -> Throttle | None:
        in_force = policies.InForce()
        mode_policy = in_force.of(ModePolicy)
        held = modes.judge(self._host, mode_policy, now, looked=snapshot is not None)
        if snapshot is None:
            return None
        thresholds = Policies(
            adaptive=in_force.of(AdaptivePolicy),
            pressure=in_force.of(PressurePolicy),
            utilisation=in_force.of(UtilisationPolicy),
            windows=in_force.of(WindowPolicy),
        )
        old, at = throttling.load(self._host)
        seconds = FIRST_LOOK_S if at is None else (now - at).total_seconds()
        settle = timedelta(seconds=thresholds.utilisation.settle_s)
        around = self._around(snapshot, in_force.of(ConstraintPolicy), settle, now)
        around = replace(around, mode=mode.multiplier(held, mode_policy))
        memory, allowed = look(old, snapshot, around, thresholds, now, seconds)
        memory = self._tell(old, memory, thresholds.pressure, now)
        throttling.save(self._host, memory, allowed, now)
        return allowed

    def _around(
        self, snapshot: Snapshot, policy: ConstraintPolicy, settle: timedelta, now: datetime
    ) -> Around:
        claims = [claim for claim in store.open_claims(self._host) if claim.job_ref.isdigit()]
        alone = {c.gpu_uuid for c in claims if c.exclusive or c.memory_bytes is None}
        on: dict[str, set[str]] = {}
        for claim in claims:
            if claim.gpu_uuid not in alone:
                on.setdefault(claim.gpu_uuid, set()).add(claim.job_ref)
        cpu = constraints.cpu_pct(self._host, now) if policy.cpu_busy_pct < 100 else None
        short = constraints.open_rows(self._host)
        return Around(
            constraints=[Constraint(row.kind, row.subject, row.text) for row in short],
            gauges=gauges(snapshot.host, policy, cpu),
            hogs=incidents.hogs_on(self._host, now),
            jobs_on=on,
            alone=alone,
            young={c.job_ref for c in claims if c.since is not None and now - c.since < settle},
            bound=bound(),
        )

    def _tell(self, old: Memory, new: Memory, policy: PressurePolicy, now: datetime) -> Memory:
        """Log lines for those who are deferred anew; events when it begins, worsens and ends."""
        waiting = {kind: found for kind in CLASSES_OF if (found := self._deferred(new, kind))}
        for kind, jobs in waiting.items():
            deferral, before = new.deferrals[kind], old.deferrals.get(kind)
            is_new = before is None or not before.holds or before.until_t != deferral.until_t
            _log([j for j in jobs if is_new or j > new.named], deferral, self._host, now)
        last = max((job for jobs in waiting.values() for job in jobs), default=0)
        new = replace(new, named=max(new.named, last))
        return self._tell_of_all(new, tuple(waiting), policy, now)

    def _deferred(self, memory: Memory, kind: PriorityClass) -> list[int]:
        """The first jobs that wait because their class is deferred."""
        deferral = memory.deferrals.get(kind)
        if deferral is None or not deferral.holds:
            return []
        rows = queued().filter(priority__in=CLASSES_OF[kind])
        if not deferring.of_host(deferral):
            rows = rows.filter(gpus__gt=0)
        return list(rows.values_list("id", flat=True)[:FIRST])

    def _tell_of_all(
        self,
        memory: Memory,
        held_back: tuple[PriorityClass, ...],
        policy: PressurePolicy,
        now: datetime,
    ) -> Memory:
        now_t = now.timestamp()
        memory = self._tell_overload(memory, now)
        if len(held_back) > memory.told:
            worst = memory.deferrals[held_back[-1]]
            text = f"Starts are held back ({_why(worst)}): {_who(held_back)} jobs wait."
            events.add("BACKPRESSURE_ACTIVATED", text, now=now, severity="warning", host=self._host)
            return replace(memory, told=len(held_back), free_since_t=None)
        if not memory.told or deferring.waiting_classes(memory.deferrals):
            return replace(memory, free_since_t=None)
        since_t = now_t if memory.free_since_t is None else memory.free_since_t
        if now_t - since_t < policy.calm_s:
            return replace(memory, free_since_t=since_t)
        events.add("BACKPRESSURE_RELEASED", "Starts are free again.", now=now, host=self._host)
        return replace(memory, told=0, free_since_t=None)

    def _tell_overload(self, memory: Memory, now: datetime) -> Memory:
        over = deferring.is_overloaded(memory.deferrals)
        if over and not memory.overloaded:
            worst = memory.deferrals[PriorityClass.NORMAL]
            text = f"{self._host} is overloaded ({_why(worst)})."
            events.add("NODE_OVERLOADED", text, now=now, severity="warning", host=self._host)
        calm = not deferring.waiting_classes(memory.deferrals)
        return replace(memory, overloaded=over or (memory.overloaded and not calm))


CLASSES_OF = {
    kind: [priority for priority, other in CLASSES.items() if other is kind]
    for kind in (PriorityClass.BACKGROUND, PriorityClass.NORMAL, PriorityClass.USER_INITIATED)
}


def queued() -> QuerySet[Job]:
    """Waiting jobs in the order of the queue."""
    rows = Job.objects.filter(state=JobState.QUEUED.value)
    return rows.order_by("-priority", "submitted_at", "id")


def bound() -> str:
    """What, besides the utilisation target, keeps the first jobs from starting; "" = nothing."""
    first = queued().filter(gpus__gt=0).values_list("blockers", flat=True)[:FIRST]
    codes = [{blocker["code"] for blocker in blockers} for blockers in first]
    if not codes:
        return "queue"
    if any(not found or "UtilTarget" in found for found in codes):
        return ""
    return next((word for code, word in BOUND.items() if code in codes[0]), "other")


def _log(jobs: Iterable[int], deferral: Deferral, host: str, now: datetime) -> None:
    for job in jobs:
        about = {"kind": "JOB_DEFERRED", "job": job, "host": host}
        line = deferring.line(job, deferral, now.timestamp())
        transaction.on_commit(partial(logger.info, "%s", line, extra=about))


def _why(deferral: Deferral) -> str:
    return ", ".join(strain.text for strain in deferral.strains)


def _who(kinds: Iterable[PriorityClass]) -> str:
    return " and ".join(kind.value for kind in kinds)
