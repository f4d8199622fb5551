"""Rows <-> facts: scarce resources of hosts, and the events when they begin and end."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.db.models import Avg, Count, QuerySet

from monitor.facts.formats import duration
from monitor.incidents.policy.constraints import (
    DATA_DISK,
    DISK,
    THROTTLED,
    Constraint,
    ConstraintEffect,
    Verdict,
)
from monitor.journal.rows import events
from monitor.models import Constraint as Row
from monitor.models import HostSample
from monitor.runtime.rows.item_isolation import ItemIsolation
from monitor.runtime.rows.prepared import compiled_once

# The window of the mean CPU use, and how much of it must be known.
CPU_WINDOW, CPU_KNOWN = timedelta(seconds=30), 0.5
# GPU health reports these events.
UNTOLD = {THROTTLED}


def open_keys(host: str) -> list[tuple[str, str]]:
    """(kind, subject) of all open constraints of `host`."""
    return [(row.kind, row.subject) for row in open_rows(host)]


def open_rows(host: str | None = None) -> list[Row]:
    """All open constraints of `host` (None = any), oldest first."""
    return [row for row in _open() if host in (None, row.host)]


@compiled_once
def _open() -> QuerySet[Row]:
    return Row.objects.filter(until_at__isnull=True).order_by("from_at", "id")


def cpu_pct(host: str, now: datetime) -> float | None:
    """Mean CPU use of the last half minute; None = too little is known."""
    since = int((now - CPU_WINDOW).timestamp())
    rows = HostSample.objects.filter(host=host, t__gt=since, t__lte=int(now.timestamp()))
    totals = rows.aggregate(mean=Avg("cpu_pct"), samples=Count("cpu_pct"))
    if totals["samples"] < CPU_KNOWN * CPU_WINDOW.total_seconds():
        return None
    return float(totals["mean"])


def apply(verdict: Verdict, host: str, now: datetime, isolation: ItemIsolation) -> None:
    """Store a verdict and record its events."""
    isolation.each(
        verdict.opened,
        lambda constraint: f"{constraint.kind} {constraint.subject}",
        lambda constraint: _open_one(constraint, host, now),
        now,
    )
    isolation.each(verdict.closed, " ".join, lambda key: _close(host, *key, now), now)


def _open_one(constraint: Constraint, host: str, now: datetime) -> None:
    Row.objects.create(
        host=host,
        kind=constraint.kind,
        subject=constraint.subject,
        text=constraint.text,
        from_at=now,
    )
    _tell(constraint, host, now)


def _close(host: str, kind: str, subject: str, now: datetime) -> None:
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
        severity="info" if constraint.effect is ConstraintEffect.SOFT else "warning",
        host=host,
    )


def _tell_end(row: Row, now: datetime) -> None:
    if row.kind in UNTOLD:
        return
    events.add(
        "DISK_SPACE_OK" if row.kind in (DISK, DATA_DISK) else "RESOURCE_CONSTRAINT_OVER",
        f"Resolved after {duration(now - row.from_at)}. It began with: {row.text}",
        now=now,
        host=row.host,
    )
