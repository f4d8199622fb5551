"""The throttle and the mode of each host: rows, and the part of the controller."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import cache, partial
from typing import Any

import msgspec
from django.db import transaction
from django.db.models import QuerySet
from msgspec.structs import replace

from monitor.facts.formats import in_utc
from monitor.facts.readings import Snapshot
from monitor.gpus.rows import snapshot as snapshots
from monitor.incidents import rows as open_incidents
from monitor.incidents.policy.constraints import Constraint, ConstraintPolicy, gauges
from monitor.journal.rows import audit, events
from monitor.runtime.rows.database import MARK, PreparedQuery, compiled_once, upsert_rows
from monitor.thresholds import rows as monitor_rows
from scheduler.facts.blockers import BOUND_CODES, BlockerCode
from scheduler.facts.jobs import CLASSES, JobState, PriorityClass
from scheduler.facts.plans import RunningJob, Throttle
from scheduler.limits.throttle.policy import pressure as throttle_deferral
from scheduler.limits.throttle.policy import throttle as throttle_policy
from scheduler.limits.throttle.policy.pressure import (
    CALM_S,
    SETTLE_S,
    Deferral,
    PressurePolicy,
    UtilisationPolicy,
)
from scheduler.limits.throttle.policy.throttle import (
    LOOK_BACK_H,
    AdaptivePolicy,
    Mode,
    ModeDecision,
    ModePolicy,
    Override,
    PlanContext,
    ThrottleMemory,
    ThrottlePolicies,
    judged,
    look,
)
from scheduler.models import Job, ModeState, ThrottleState


def judge(host: str, policy: ModePolicy, now: datetime, *, looked: bool = True) -> Mode:
    """Compute the mode, and report a change.

    looked: False = there is no reading, so only an operator's override can end.
    """
    row = mode_of(host) or ModeState(host=host, since_at=now)
    before = dict(vars(row))
    share = open_incidents.hog_share(host, LOOK_BACK_H, now) if looked else None
    made = judged(Mode(row.automatic), share, _override(row), policy, now)
    return _settle(row, made, now, before)


def mode_of(host: str) -> ModeState | None:
    return next((row for row in _mode_rows() if row.host == host), None)


def all_modes() -> list[ModeState]:
    return _mode_rows()


def shown_modes(host: str) -> list[ModeState]:
    """Of all hosts, this one first. A host that nothing is known of yet is cooperative."""
    return sorted(_mode_rows(), key=lambda row: row.host != host)


@compiled_once
def _mode_rows() -> QuerySet[ModeState]:
    return ModeState.objects.order_by("host")


def override(
    host: str, mode: Mode | None, until: datetime | None, *, by: str, now: datetime
) -> ModeState:
    """Let operators decide until then; mode None = by the hogs again."""
    with transaction.atomic():
        row = ModeState.objects.filter(host=host).first() or ModeState(host=host, since_at=now)
        before = _decided(row, now)
        row.override = "" if mode is None else mode.value
        row.override_until, row.override_by = (None, "") if mode is None else (until, by)
        automatic = Mode(row.automatic)
        made = ModeDecision(automatic, row.automatic_reason, automatic, row.automatic_reason)
        if mode is not None:
            made = ModeDecision(mode, f"{by} has set it.", automatic, row.automatic_reason)
        _settle(row, made, now)
        after = _decided(row, now)
        text = f"{by} set the mode of {host} to {after['mode']}"
        text += f" until {in_utc(until)}" if mode and until else ""
        audit.note(
            "MODE_SET", text, by=by, now=now, subject=f"mode {host}", before=before, after=after
        )
    return row


def _override(row: ModeState) -> Override | None:
    if not row.override or row.override_until is None:
        return None
    return Override(mode=Mode(row.override), until=row.override_until, by=row.override_by)


def _decided(row: ModeState, now: datetime) -> dict[str, str | None]:
    override = _override(row)
    if override is None or override.until <= now:
        return {"mode": "automatic", "until": None}
    return {"mode": override.mode.value, "until": override.until.isoformat()}


def _settle(
    row: ModeState, made: ModeDecision, now: datetime, before: Mapping[str, object] | None = None
) -> Mode:
    """`before`: the row as it is stored; nothing is written where that says the same."""
    is_new, changed = row._state.adding, row.mode != made.mode.value
    if row.override_until is not None and row.override_until <= now:
        row.override, row.override_until, row.override_by = "", None, ""
    row.automatic, row.automatic_reason = made.automatic.value, made.automatic_reason
    row.mode, row.reason = made.mode.value, made.reason
    row.since_at = now if changed else row.since_at
    if is_new or vars(row) != before:
        row.save(force_insert=is_new)
    if changed:
        text = f"{row.host} is {made.mode.value} now. {made.reason}"
        severity = "warning" if made.mode is Mode.DEFENSIVE else "info"
        events.add("MODE_CHANGED", text, now=now, severity=severity, host=row.host)
    return made.mode


# Decisions expire after this time without an update from the controller.
STALE_AFTER = timedelta(minutes=2)
# The row of each host when it was last read, and its decoded value.
_read: dict[str, tuple[str, Throttle]] = {}


def throttle(host: str, now: datetime, running: Sequence[RunningJob]) -> Throttle:
    """The throttle of `host`; one small query.

    running: jobs that share GPUs, to correct for starts and ends since the controller's tick.
    """
    row = next(iter(_allowed_on(host).rows()), None)
    if row is None or now - row[1] > STALE_AFTER:
        return Throttle()
    text, _, sharing = row
    cached = _read.get(host)
    if cached is None or cached[0] != text:
        cached = _read[host] = (text, _allowed(text))
    if cached[1].starts is None:
        return cached[1]
    more = sharing - sum(job.requirement.shares for job in running)
    return replace(cached[1], starts=max(0, cached[1].starts + more)) if more else cached[1]


@cache
def _allowed_on(host: str) -> PreparedQuery[int, tuple[str, datetime, int]]:
    rows = ThrottleState.objects.filter(host=host).values_list("allowed", "at", "sharing")
    return PreparedQuery(lambda _: rows, MARK)


def load(host: str) -> tuple[ThrottleMemory, datetime | None]:
    """The state of the previous tick, and its time."""
    row = next((row for row in _by_host() if row.host == host), None)
    return (ThrottleMemory(), None) if row is None else (_memory(row.memory), row.at)


def save(host: str, memory: ThrottleMemory, allowed: Throttle, now: datetime) -> None:
    """Store a tick."""
    row = ThrottleState(
        host=host,
        at=now,
        allowed=msgspec.json.encode(allowed).decode(),
        sharing=memory.level.running,
        memory=msgspec.json.encode(memory).decode(),
    )
    upsert_rows([row], ("host",), ("at", "allowed", "sharing", "memory"))


def shown() -> list[tuple[str, datetime, Throttle, ThrottleMemory]]:
    """(host, time of the tick, throttle, state) of each host, for pages."""
    return [(row.host, row.at, _allowed(row.allowed), _memory(row.memory)) for row in _by_host()]


@compiled_once
def _by_host() -> QuerySet[ThrottleState]:
    return ThrottleState.objects.order_by("host")


def _allowed(text: str) -> Throttle:
    """A row of another version allows everything until the next tick."""
    try:
        return msgspec.json.decode(text, type=Throttle)
    except ValueError:
        return Throttle()


def _memory(text: str) -> ThrottleMemory:
    """A row of another version is ignored: the state starts anew."""
    try:
        return msgspec.json.decode(text, type=ThrottleMemory)
    except ValueError:
        return ThrottleMemory()


# Number of waiting jobs whose blockers are read, and that log lines name.
FIRST = 10
FIRST_LOOK_S = 5.0
logger = logging.getLogger(__name__)


class ThrottleStep:
    """Computes the throttle once a tick; its state is in a row."""

    name = "pressure"

    def __init__(self, host: str) -> None:
        self._host = host

    def judge(self, snapshot: Snapshot | None, now: datetime) -> Throttle | None:
        in_force = monitor_rows.ThresholdsInForce()
        mode_policy = in_force.of(ModePolicy)
        mode_row = judge(self._host, mode_policy, now, looked=snapshot is not None)
        if snapshot is None:
            return None
        thresholds = ThrottlePolicies(
            adaptive=in_force.of(AdaptivePolicy),
            pressure=in_force.of(PressurePolicy),
            utilisation=in_force.of(UtilisationPolicy),
        )
        old, at = load(self._host)
        seconds = FIRST_LOOK_S if at is None else (now - at).total_seconds()
        settle = timedelta(seconds=SETTLE_S)
        around = self._around(snapshot, in_force.of(ConstraintPolicy), settle, now)
        around = replace(around, mode=throttle_policy.mode_multiplier(mode_row, mode_policy))
        memory, allowed = look(old, snapshot, around, thresholds, now, seconds)
        memory = self._tell(old, memory, now)
        save(self._host, memory, allowed, now)
        return allowed

    def _around(
        self, snapshot: Snapshot, policy: ConstraintPolicy, settle: timedelta, now: datetime
    ) -> PlanContext:
        claims = [claim for claim in snapshots.open_claims(self._host) if claim.job_ref.isdigit()]
        alone = {c.gpu_uuid for c in claims if c.exclusive or c.memory_bytes is None}
        on: dict[str, set[str]] = {}
        for claim in claims:
            if claim.gpu_uuid not in alone:
                on.setdefault(claim.gpu_uuid, set()).add(claim.job_ref)
        cpu = open_incidents.cpu_pct(self._host, now) if policy.cpu_busy_pct < 100 else None
        short = open_incidents.open_constraints(self._host)
        return PlanContext(
            constraints=[Constraint(row.kind, row.subject, row.text) for row in short],
            gauges=gauges(snapshot.host, policy, cpu),
            hogs=open_incidents.hogs_on(self._host, now),
            jobs_on=on,
            alone=alone,
            young={c.job_ref for c in claims if c.since is not None and now - c.since < settle},
            bound=bound(),
        )

    def _tell(self, old: ThrottleMemory, new: ThrottleMemory, now: datetime) -> ThrottleMemory:
        """Log newly deferred jobs; add events when backpressure begins, worsens and ends."""
        waiting = {kind: deferred for kind in CLASSES_OF if (deferred := self._deferred(new, kind))}
        for kind, jobs in waiting.items():
            deferral, before = new.deferrals[kind], old.deferrals.get(kind)
            begins = before is None or not before.holds or before.until_t != deferral.until_t
            for job in jobs:
                if begins or job > new.named:
                    _log(job, deferral, self._host, now, is_new=not begins)
        last = max((job for jobs in waiting.values() for job in jobs), default=0)
        new = replace(new, named=max(new.named, last))
        return self._tell_of_all(new, tuple(waiting), now)

    def _deferred(self, memory: ThrottleMemory, kind: PriorityClass) -> list[int]:
        """The first jobs that wait because their class is deferred."""
        deferral = memory.deferrals.get(kind)
        if deferral is None or not deferral.holds:
            return []
        rows = queued().filter(priority__in=CLASSES_OF[kind])
        if not throttle_deferral.of_host(deferral):
            rows = rows.filter(gpus__gt=0)
        return list(rows.values_list("id", flat=True)[:FIRST])

    def _tell_of_all(
        self,
        memory: ThrottleMemory,
        held_back: tuple[PriorityClass, ...],
        now: datetime,
    ) -> ThrottleMemory:
        now_t = now.timestamp()
        memory = self._tell_overload(memory, now)
        if len(held_back) > memory.reported:
            worst = memory.deferrals[held_back[-1]]
            text = f"Starts are held back ({_why(worst)}): {_class_names(held_back)} jobs wait."
            events.add("BACKPRESSURE_ACTIVATED", text, now=now, severity="warning", host=self._host)
            return replace(memory, reported=len(held_back), free_since_t=None)
        if not memory.reported or throttle_deferral.waiting_classes(memory.deferrals):
            return replace(memory, free_since_t=None)
        since_t = now_t if memory.free_since_t is None else memory.free_since_t
        if now_t - since_t < CALM_S:
            return replace(memory, free_since_t=since_t)
        events.add("BACKPRESSURE_RELEASED", "Starts are free again.", now=now, host=self._host)
        return replace(memory, reported=0, free_since_t=None)

    def _tell_overload(self, memory: ThrottleMemory, now: datetime) -> ThrottleMemory:
        over = throttle_deferral.is_overloaded(memory.deferrals)
        if over and not memory.overloaded:
            worst = memory.deferrals[PriorityClass.NORMAL]
            text = f"{self._host} is overloaded ({_why(worst)})."
            events.add("NODE_OVERLOADED", text, now=now, severity="warning", host=self._host)
        calm = not throttle_deferral.waiting_classes(memory.deferrals)
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
    """The obstacle of the first jobs, besides the utilisation target; "" = none."""
    codes = [{blocker["code"] for blocker in blockers} for blockers in _first_blockers()]
    if not codes:
        return "queue"
    if any(not waiting or BlockerCode.UTIL_TARGET.value in waiting for waiting in codes):
        return ""
    return next((code.bound for code in BOUND_CODES if code.value in codes[0]), "other")


@compiled_once
def _first_blockers() -> QuerySet[Any, list[dict[str, Any]]]:
    return queued().filter(gpus__gt=0).values_list("blockers", flat=True)[:FIRST]


def _log(job: int, deferral: Deferral, host: str, now: datetime, *, is_new: bool) -> None:
    line, figures = throttle_deferral.line(job, deferral, now.timestamp(), is_new=is_new)
    about = {"kind": "JOB_DEFERRED", "job": job, "host": host, **figures}
    transaction.on_commit(partial(logger.info, "%s", line, extra=about))


def _why(deferral: Deferral) -> str:
    return ", ".join(signal.text for signal in deferral.strains)


def _class_names(kinds: Iterable[PriorityClass]) -> str:
    return " and ".join(kind.value for kind in kinds)
