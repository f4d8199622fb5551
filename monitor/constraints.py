"""Rows <-> facts: what hosts are short of, and the events when that begins and ends."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.db.models import Avg, Count, QuerySet

from monitor import events
from monitor.models import Constraint as Row
from monitor.models import HostSample
from monitor.policy.constraints import (
    DATA_DISK,
    DISK,
    THROTTLED,
    Constraint,
    Grip,
    Verdict,
)
from monitor.prepared import prepared

# The mean that says how busy the CPUs are, and how much of it must be known.
CPU_WINDOW, CPU_KNOWN = timedelta(seconds=30), 0.5
# These are told by somebody else: the GPU's health.
UNTOLD = {THROTTLED}


def open_keys(host: str) -> list[tuple[str, str]]:
    """(kind, subject) of all that `host` is short of."""
    return [(row.kind, row.subject) for row in open_rows(host)]


def open_rows(host: str | None = None) -> list[Row]:
    """All that `host` (None = any) is short of, the oldest first."""
    return [row for row in _open() if host in (None, row.host)]


@prepared
def _open() -> QuerySet[Row]:
    return Row.objects.filter(until_at__isnull=True).order_by("from_at", "id")


def cpu_pct(host: str, now: datetime) -> float | None:
    """How busy the CPUs were in the last half minute; None = not known well enough."""
    since = int((now - CPU_WINDOW).timestamp())
    rows = HostSample.objects.filter(host=host, t__gt=since, t__lte=int(now.timestamp()))
    found = rows.aggregate(mean=Avg("cpu_pct"), known=Count("cpu_pct"))
    if found["known"] < CPU_KNOWN * CPU_WINDOW.total_seconds():
        return None
    return float(found["mean"])


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
    if constraint.kind in UNTOLD:
        return
    events.add(
        "DISK_SPACE_LOW" if constraint.kind in (DISK, DATA_DISK) else "RESOURCE_CONSTRAINT",
        constraint.text,
        now=now,
        severity="info" if constraint.grip is Grip.SOFT else "warning",
        host=host,
    )


def _tell_end(row: Row, now: datetime) -> None:
    if row.kind in UNTOLD:
        return
    events.add(
        "DISK_SPACE_OK" if row.kind in (DISK, DATA_DISK) else "RESOURCE_CONSTRAINT_OVER",
        f"No longer: {row.text}",
        now=now,
        host=row.host,
    )
