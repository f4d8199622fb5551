"""Rows <-> facts: the mode of each host, and what operators decided about it."""

from __future__ import annotations

from datetime import datetime

from django.db import transaction

from monitor import audit, events, incidents
from scheduler.models import ModeState
from scheduler.policy.mode import Judged, Mode, ModePolicy, Override, judged


def judge(host: str, policy: ModePolicy, now: datetime) -> Mode:
    """Decide the mode once, and tell it when it changes."""
    row = ModeState.objects.filter(host=host).first() or ModeState(host=host, since_at=now)
    share = incidents.hog_share(host, policy.hours, now)
    return _settle(row, judged(Mode(row.automatic), share, _override(row), policy, now), now)


def mode_of(host: str) -> ModeState | None:
    return ModeState.objects.filter(host=host).first()


def shown(host: str) -> list[ModeState]:
    """Of all hosts, this one first. A host that nothing is known of yet is cooperative."""
    rows = list(ModeState.objects.order_by("host"))
    return sorted(rows, key=lambda row: row.host != host)


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


def _settle(row: ModeState, made: Judged, now: datetime) -> Mode:
    is_new, changed = row._state.adding, row.mode != made.mode.value
    if row.override_until is not None and row.override_until <= now:
        row.override, row.override_until, row.override_by = "", None, ""
    row.automatic, row.automatic_reason = made.automatic.value, made.automatic_reason
    row.mode, row.reason = made.mode.value, made.reason
    row.since_at = now if changed else row.since_at
    row.save(force_insert=is_new)
    if changed:
        text = f"{row.host} is {made.mode.value} now. {made.reason}"
        severity = "warning" if made.mode is Mode.DEFENSIVE else "info"
        events.add("MODE_CHANGED", text, now=now, severity=severity, host=row.host)
    return made.mode
