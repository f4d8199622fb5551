"""Delete old rows in small chunks, so that other writers do not wait long."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import chain

from django.conf import settings
from django.db import DEFAULT_DB_ALIAS, connections
from django.db.models import Model, Q, QuerySet

from monitor.models import (
    Claim,
    Constraint,
    Event,
    Exemption,
    Gpu,
    HostHour,
    HostSample,
    Incident,
    ItemFault,
    LatestSnapshot,
    Message,
    ProcessHour,
    ProcessMinute,
    ProcessUse,
)
from monitor.runtime.rows.item_isolation import ItemIsolation
from monitor.usage.rows import rollups
from monitor.usage.rows.rollups import GPUS, HOSTS, RollupLevels

CHUNK = 2000


@dataclass(frozen=True, slots=True)
class RetentionPeriods:
    """How long rows are kept."""

    raw: timedelta
    minutes: timedelta = timedelta(days=90)
    hours: timedelta = timedelta(days=730)
    # Samples that are in no minute yet are kept this much longer at most.
    patience: timedelta = timedelta(days=1)
    events: timedelta = timedelta(days=90)
    # Changes between idle and busy are of little use after a week.
    state_changes: timedelta = timedelta(days=7)
    messages: timedelta = timedelta(days=90)
    # A host without readings for this time was renamed or removed.
    silent_hosts: timedelta = timedelta(days=7)
    item_faults: timedelta = timedelta(days=1)


# Yields the outdated rows of another app.
TooOld = Callable[[RetentionPeriods, datetime], Iterator[QuerySet[Model]]]
_others: list[TooOld] = []


def register(too_old: TooOld) -> None:
    """Register the outdated rows of another app for pruning."""
    _others.append(too_old)


def prune(keep: RetentionPeriods, now: datetime, chunk: int = CHUNK) -> dict[str, int]:
    """Delete old rows; returns the number of deleted rows by table."""
    gone: dict[str, int] = {}

    def delete(rows: QuerySet[Model]) -> None:
        name = _name(rows)
        gone[name] = gone.get(name, 0) + _delete(rows, chunk)

    isolation = ItemIsolation(settings.CONFIG.node, "pruning", longest_retry=timedelta())
    tables = chain(*(too_old(keep, now) for too_old in (_too_old, *_others)))
    isolation.each(tables, _name, delete, now)
    return gone


def _name(rows: QuerySet[Model]) -> str:
    return rows.model._meta.model_name or ""


def _too_old(keep: RetentionPeriods, now: datetime) -> Iterator[QuerySet[Model]]:
    # By GPU and by host, as the indexes are.
    for uuid in Gpu.objects.values_list("uuid", flat=True):
        yield from _of_ladder(GPUS, uuid, keep, now)
    sampled, rolled_up = (rows.objects.order_by().values("host") for rows in (HostSample, HostHour))
    hosts = {row["host"] for row in sampled.union(rolled_up)}
    for host in sorted(hosts):
        yield from _of_ladder(HOSTS, host, keep, now)
    yield _oldest(ProcessMinute, int((now - keep.minutes).timestamp()))
    yield ProcessHour.objects.filter(t__lt=int((now - keep.hours).timestamp()))
    yield ProcessUse.objects.filter(last_seen_at__lt=now - keep.hours)
    old = now - keep.events
    is_passing = Q(kind="GPU_STATE_CHANGED", severity=Event.Severity.INFO)
    yield Event.objects.filter(Q(at__lt=old) | is_passing & Q(at__lt=now - keep.state_changes))
    sent = Message.objects.exclude(state=Message.State.WAITING)
    yield sent.filter(created_at__lt=now - keep.messages)
    yield LatestSnapshot.objects.filter(at__lt=now - keep.silent_hosts)
    # A failing item is retried every few seconds, so an old fault is of an item that is gone.
    yield ItemFault.objects.filter(last_at__lt=now - keep.item_faults)
    yield Claim.objects.filter(until_at__lt=old)
    yield Constraint.objects.filter(until_at__lt=old)
    # Patterns are kept as long as the hours that are their evidence.
    yield Incident.objects.filter(closed_at__lt=now - keep.hours)
    yield Exemption.objects.filter(until_at__lt=now - keep.hours)


def _of_ladder(
    ladder: RollupLevels, key: str, keep: RetentionPeriods, now: datetime
) -> Iterator[QuerySet[Model]]:
    """Only tables with rows that are old: most have none, and deleting nothing is dear too."""
    tables = (ladder.samples, ladder.minutes, ladder.hours)
    first = _first_times(ladder.key, key, tables)
    until = [int((now - kept).timestamp()) for kept in (keep.raw, keep.minutes, keep.hours)]
    if first[0] is not None and first[0] < until[0]:
        until[0] = _raw_until(ladder, key, keep, now)
    for table, t, limit in zip(tables, first, until, strict=True):
        if t is not None and t < limit:
            yield table._default_manager.filter(**{ladder.key: key}, t__lt=limit)


def _first_times(field: str, key: str, tables: Sequence[type[Model]]) -> tuple[int | None, ...]:
    """The time of the oldest row of each table, in one statement; None: it has no row."""
    connection = connections[DEFAULT_DB_ALIAS]
    quoted = connection.ops.quote_name
    columns = ", ".join(
        f"(SELECT MIN(t) FROM {quoted(table._meta.db_table)} WHERE {quoted(field)} = %s)"  # noqa: S608
        for table in tables
    )
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {columns}", [key] * len(tables))
        return tuple(cursor.fetchone())


def _raw_until(ladder: RollupLevels, key: str, keep: RetentionPeriods, now: datetime) -> int:
    """Delete whole minutes only once they are rolled up, which may be late after a pause."""
    old = rollups.floor(int((now - keep.raw).timestamp()), rollups.MINUTE_S)
    in_minutes = rollups.safe_to_delete(ladder, key) or 0
    hopeless = int((now - keep.raw - keep.patience).timestamp())
    return max(min(old, in_minutes), hopeless)


def _oldest(model: type[ProcessMinute], t: int) -> QuerySet[Model]:
    """The rows that were written first and are old, because there is no index on the time alone."""
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
