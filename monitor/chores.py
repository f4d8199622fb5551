"""Rows: work that is done again and again, by whichever host's controller comes first."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.db.models import Q, QuerySet

from monitor.models import Chore
from monitor.prepared import prepared


@prepared
def _rows() -> QuerySet[Chore]:
    return Chore.objects.all()


def due(name: str, every: timedelta, now: datetime) -> bool:
    """Whether a chore is to be queued now; True for one caller only."""
    if any(row.name == name and row.queued_at > now - every for row in _rows()):
        return False
    Chore.objects.bulk_create([Chore(name=name, queued_at=now - every)], ignore_conflicts=True)
    rows = Chore.objects.filter(name=name, queued_at__lte=now - every)
    return rows.update(queued_at=now) == 1


def done(name: str, result: str, now: datetime) -> None:
    Chore.objects.filter(name=name).update(done_at=now, result=result)


def begin(name: str, longest: timedelta, now: datetime) -> bool:
    """Take a chore that only one may do at a time; True for that one, who calls `done`."""
    Chore.objects.bulk_create([Chore(name=name, queued_at=now - longest)], ignore_conflicts=True)
    free = Chore.objects.filter(name=name).exclude(_busy(longest, now))
    return free.update(queued_at=now, done_at=None) == 1


def is_busy(name: str, longest: timedelta, now: datetime) -> bool:
    """Whether somebody does it now; one who took longer than `longest` has died."""
    return Chore.objects.filter(_busy(longest, now), name=name).exists()


def _busy(longest: timedelta, now: datetime) -> Q:
    return Q(done_at__isnull=True, queued_at__gt=now - longest)
