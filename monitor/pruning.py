"""Old rows go, a few at a time, so that nobody waits long for the database."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import Model, QuerySet

from monitor.models import Chore, Claim, Constraint, Event, Gpu, HostSample, LatestSnapshot, Sample

CHUNK = 2000


@dataclass(frozen=True, slots=True)
class Keep:
    """How long rows are kept."""

    raw: timedelta
    events: timedelta = timedelta(days=90)
    # Idle or busy: a change of state that passes says little after a week.
    state_changes: timedelta = timedelta(days=7)
    # A host that has been silent for so long was renamed or taken away.
    silent_hosts: timedelta = timedelta(days=7)


def due(name: str, every: timedelta, now: datetime) -> bool:
    """Whether a chore is to be queued now; True for one caller only."""
    Chore.objects.bulk_create([Chore(name=name, queued_at=now - every)], ignore_conflicts=True)
    rows = Chore.objects.filter(name=name, queued_at__lte=now - every)
    return rows.update(queued_at=now) == 1


def done(name: str, result: str, now: datetime) -> None:
    Chore.objects.filter(name=name).update(done_at=now, result=result)


def prune(keep: Keep, now: datetime, chunk: int = CHUNK) -> dict[str, int]:
    """Delete what is too old; how many rows of which table."""
    gone: dict[str, int] = {}
    for rows in _too_old(keep, now):
        name = rows.model._meta.model_name or ""
        gone[name] = gone.get(name, 0) + _delete(rows, chunk)
    return gone


def _too_old(keep: Keep, now: datetime) -> Iterator[QuerySet[Model]]:
    raw_t = int((now - keep.raw).timestamp())
    # GPU by GPU and host by host: that is how the samples' index goes.
    for uuid in Gpu.objects.values_list("uuid", flat=True):
        yield Sample.objects.filter(gpu_id=uuid, t__lt=raw_t)
    for host in HostSample.objects.order_by("host").values_list("host", flat=True).distinct():
        yield HostSample.objects.filter(host=host, t__lt=raw_t)
    old = now - keep.events
    yield Event.objects.filter(at__lt=old)
    passing = Event.objects.filter(kind="GPU_STATE_CHANGED", severity=Event.Severity.INFO)
    yield passing.filter(at__lt=now - keep.state_changes)
    yield LatestSnapshot.objects.filter(at__lt=now - keep.silent_hosts)
    yield Claim.objects.filter(until_at__lt=old)
    yield Constraint.objects.filter(until_at__lt=old)


def _delete(rows: QuerySet[Model], chunk: int) -> int:
    total = 0
    while True:
        some = rows.order_by().values("pk")[:chunk]
        deleted, _ = rows.model._default_manager.filter(pk__in=some).delete()
        total += deleted
        if deleted < chunk:
            return total
