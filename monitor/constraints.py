"""Rows <-> facts: what hosts are short of, and the events when that begins and ends."""

from __future__ import annotations

from datetime import datetime

from monitor import events
from monitor.models import Constraint as Row
from monitor.policy.constraints import DISK, TEMPERATURE, Constraint, Verdict


def open_keys(host: str) -> list[tuple[str, str]]:
    """(kind, subject) of all that `host` is short of."""
    rows = Row.objects.filter(host=host, until_at__isnull=True)
    return list(rows.values_list("kind", "subject"))


def apply(verdict: Verdict, host: str, now: datetime) -> None:
    """Write a verdict down and tell it."""
    for constraint in verdict.opened:
        Row.objects.create(
            host=host,
            kind=constraint.kind,
            subject=constraint.subject,
            text=constraint.text,
            from_at=now,
        )
        _tell(constraint, host, now)
    for kind, subject in verdict.closed:
        rows = Row.objects.filter(host=host, kind=kind, subject=subject, until_at__isnull=True)
        for row in rows:
            row.until_at = now
            row.save(update_fields=["until_at"])
            _tell_end(row, now)


def _tell(constraint: Constraint, host: str, now: datetime) -> None:
    events.add(
        "DISK_SPACE_LOW" if constraint.kind == DISK else "RESOURCE_CONSTRAINT",
        constraint.text,
        now=now,
        severity="warning",
        host=host,
        gpu_uuid=constraint.subject if constraint.kind == TEMPERATURE else "",
    )


def _tell_end(row: Row, now: datetime) -> None:
    events.add(
        "DISK_SPACE_OK" if row.kind == DISK else "RESOURCE_CONSTRAINT_OVER",
        f"No longer: {row.text}",
        now=now,
        host=row.host,
        gpu_uuid=row.subject if row.kind == TEMPERATURE else "",
    )
