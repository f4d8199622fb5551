"""Rows: work that is done again and again, by whichever host's controller comes first."""

from __future__ import annotations

from datetime import datetime, timedelta

from monitor.models import Chore


def due(name: str, every: timedelta, now: datetime) -> bool:
    """Whether a chore is to be queued now; True for one caller only."""
    Chore.objects.bulk_create([Chore(name=name, queued_at=now - every)], ignore_conflicts=True)
    rows = Chore.objects.filter(name=name, queued_at__lte=now - every)
    return rows.update(queued_at=now) == 1


def done(name: str, result: str, now: datetime) -> None:
    Chore.objects.filter(name=name).update(done_at=now, result=result)
