"""Rows <-> facts: the throttle and the mode of each host, and the controller's state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from functools import cache

import msgspec
from django.db import transaction
from django.db.models import QuerySet
from msgspec.structs import replace

from monitor.facts.formats import in_utc
from monitor.incidents import rows as open_incidents
from monitor.journal.rows import audit, events
from monitor.runtime.rows.database import MARK, PreparedQuery, compiled_once, upsert_rows
from scheduler.facts.plans import RunningJob, Throttle
from scheduler.limits.throttle.policy.throttle import (
    LOOK_BACK_H,
    Mode,
    ModeDecision,
    ModePolicy,
    Override,
    ThrottleMemory,
    judged,
)
from scheduler.models import ModeState, ThrottleState


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
