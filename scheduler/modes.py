"""Rows <-> facts: the mode of each host, and what operators decided about it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from django.db import transaction
from django.db.models import QuerySet

from monitor import audit, events, incidents
from monitor.prepared import prepared
from scheduler.models import ModeState
from scheduler.policy.mode import Judged, Mode, ModePolicy, Override, judged


def judge(host: str, policy: ModePolicy, now: datetime, *, looked: bool = True) -> Mode:
    """Decide the mode once, and tell it when it changes.

    Not `looked`: who is there can't be told now, but what an operator decided ends in time.
    """
    row = mode_of(host) or ModeState(host=host, since_at=now)
    before = dict(vars(row))
    share = incidents.hog_share(host, policy.hours, now) if looked else None
    made = judged(Mode(row.automatic), share, _override(row), policy, now)
    return _settle(row, made, now, before)


def mode_of(host: str) -> ModeState | None:
    return next((row for row in _by_host() if row.host == host), None)


def shown(host: str) -> list[ModeState]:
    """Of all hosts, this one first. A host that nothing is known of yet is cooperative."""
    return sorted(_by_host(), key=lambda row: row.host != host)


@prepared
def _by_host() -> QuerySet[ModeState]:
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
        made = Judged(automatic, row.automatic_reason, automatic, row.automatic_reason)
        if mode is not None:
            made = Judged(mode, f"{by} has set it.", automatic, row.automatic_reason)
        _settle(row, made, now)
        after = _decided(row, now)
        text = f"{by} set the mode of {host} to {after['mode']}"
        text += f" until {until.isoformat(timespec='minutes')}" if mode and until else ""
        audit.note(
            "MODE_SET", text, by=by, now=now, subject=f"mode {host}", before=before, after=after
        )
    return row


def _override(row: ModeState) -> Override | None:
    if not row.override or row.override_until is None:
        return None
    return Override(mode=Mode(row.override), until=row.override_until, by=row.override_by)


def _decided(row: ModeState, now: datetime) -> dict[str, str | None]:
    found = _override(row)
    if found is None or found.until <= now:
        return {"mode": "automatic", "until": None}
    return {"mode": found.mode.value, "until": found.until.isoformat()}


def _settle(
    row: ModeState, made: Judged, now: datetime, before: Mapping[str, object] | None = None
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
