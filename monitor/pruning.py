"""Old rows go, a few at a time, so that nobody waits long for the database."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import chain

from django.db.models import Model, QuerySet

from monitor import rollups
from monitor.models import (
    Claim,
    Constraint,
    Event,
    Exemption,
    Gpu,
    HostHour,
    HostSample,
    Incident,
    LatestSnapshot,
    Message,
    ProcessHour,
    ProcessMinute,
    ProcessUse,
)
from monitor.rollups import GPUS, HOSTS, Ladder

CHUNK = 2000


@dataclass(frozen=True, slots=True)
class Keep:
    """How long rows are kept."""

    raw: timedelta
    minutes: timedelta = timedelta(days=90)
    hours: timedelta = timedelta(days=730)
    # Samples that are in no minute yet wait so much longer, then they go too.
    patience: timedelta = timedelta(days=1)
    events: timedelta = timedelta(days=90)
    # Idle or busy: a change of state that passes says little after a week.
    state_changes: timedelta = timedelta(days=7)
    messages: timedelta = timedelta(days=90)
    # A host that has been silent for so long was renamed or taken away.
    silent_hosts: timedelta = timedelta(days=7)


# What other apps no longer want to keep.
TooOld = Callable[[Keep, datetime], Iterator[QuerySet[Model]]]
_others: list[TooOld] = []


def register(too_old: TooOld) -> None:
    """Rows of another app that go with ours."""
    _others.append(too_old)


def prune(keep: Keep, now: datetime, chunk: int = CHUNK) -> dict[str, int]:
    """Delete what is too old; how many rows of which table."""
    gone: dict[str, int] = {}
    for rows in chain(*(too_old(keep, now) for too_old in (_too_old, *_others))):
        name = rows.model._meta.model_name or ""
        gone[name] = gone.get(name, 0) + _delete(rows, chunk)
    return gone


def _too_old(keep: Keep, now: datetime) -> Iterator[QuerySet[Model]]:
    # GPU by GPU and host by host: that is how the indexes go.
    for uuid in Gpu.objects.values_list("uuid", flat=True):
        yield from _of_ladder(GPUS, uuid, keep, now)
    hosts = set(HostSample.objects.order_by("host").values_list("host", flat=True).distinct())
    hosts |= set(HostHour.objects.order_by("host").values_list("host", flat=True).distinct())
    for host in sorted(hosts):
        yield from _of_ladder(HOSTS, host, keep, now)
    yield _oldest(ProcessMinute, int((now - keep.minutes).timestamp()))
    yield ProcessHour.objects.filter(t__lt=int((now - keep.hours).timestamp()))
    yield ProcessUse.objects.filter(last_seen_at__lt=now - keep.hours)
    old = now - keep.events
    yield Event.objects.filter(at__lt=old)
    passing = Event.objects.filter(kind="GPU_STATE_CHANGED", severity=Event.Severity.INFO)
    yield passing.filter(at__lt=now - keep.state_changes)
    sent = Message.objects.exclude(state=Message.State.WAITING)
    yield sent.filter(created_at__lt=now - keep.messages)
    yield LatestSnapshot.objects.filter(at__lt=now - keep.silent_hosts)
    yield Claim.objects.filter(until_at__lt=old)
    yield Constraint.objects.filter(until_at__lt=old)
    # As long as the hours, which are their evidence.
    yield Incident.objects.filter(closed_at__lt=now - keep.hours)
    yield Exemption.objects.filter(until_at__lt=now - keep.hours)


def _of_ladder(ladder: Ladder, key: str, keep: Keep, now: datetime) -> Iterator[QuerySet[Model]]:
    mine = {ladder.key: key}
    samples = ladder.samples._default_manager.filter(**mine)
    yield samples.filter(t__lt=_raw_until(ladder, key, keep, now))
    minutes = ladder.minutes._default_manager.filter(**mine)
    yield minutes.filter(t__lt=int((now - keep.minutes).timestamp()))
    hours = ladder.hours._default_manager.filter(**mine)
    yield hours.filter(t__lt=int((now - keep.hours).timestamp()))


def _raw_until(ladder: Ladder, key: str, keep: Keep, now: datetime) -> int:
    """Whole minutes go, and only when they have been added up: after a pause that comes late."""
    old = rollups.floor(int((now - keep.raw).timestamp()), rollups.MINUTE_S)
    in_minutes = rollups.safe_to_delete(ladder, key) or 0
    hopeless = int((now - keep.raw - keep.patience).timestamp())
    return max(min(old, in_minutes), hopeless)


def _oldest(model: type[ProcessMinute], t: int) -> QuerySet[Model]:
    """Those that were written first and are old: without an index on the time."""
    first = model.objects.order_by("pk").values("pk")[:CHUNK]
    return model.objects.filter(pk__in=first, t__lt=t)


def _delete(rows: QuerySet[Model], chunk: int) -> int:
    total = 0
    while True:
        some = rows.order_by().values("pk")[:chunk]
        deleted, _ = rows.model._default_manager.filter(pk__in=some).delete()
        total += deleted
        if deleted < chunk:
            return total
