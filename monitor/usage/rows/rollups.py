"""Roll-ups of samples to minutes and of minutes to hours, and deletion of old rows.

Rolling up again is idempotent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import chain
from typing import Any

from django.conf import settings
from django.db import DEFAULT_DB_ALIAS, connections
from django.db.models import BigIntegerField, Count, F, Max, Min, Model, Q, QuerySet, Sum, Value
from django.db.models.functions import Cast, Coalesce, Mod
from msgspec import Struct

from monitor.facts.readings import GPU_FIELDS
from monitor.models import (
    Claim,
    Constraint,
    Event,
    Exemption,
    Gpu,
    GpuHour,
    GpuMinute,
    HostHour,
    HostMinute,
    HostSample,
    Incident,
    ItemFault,
    LatestSnapshot,
    Message,
    ProcessHour,
    ProcessMinute,
    ProcessUse,
    Sample,
)
from monitor.runtime.rows.item_isolation import ItemIsolation

MINUTE_S, HOUR_S, DAY_S = 60, 3600, 86400
# Maximum delay between reading and committing a sample.
LATE_S = 15
# The newest minutes are rolled up again each time, in case a sample was committed late.
REDO_S = 120


class Measure(Struct, frozen=True):
    """A measured field, and the columns of its sum, its known seconds and its maximum."""

    source: str
    total: str | None
    known_s: str | None
    greatest: str | None


class RollupLevels(Struct, frozen=True):
    """Samples, minutes and hours of GPUs or hosts, identified by the field `key`."""

    key: str
    samples: type[Model]
    minutes: type[Model]
    hours: type[Model]
    measures: tuple[Measure, ...]


GPUS = RollupLevels(
    "gpu_id",
    Sample,
    GpuMinute,
    GpuHour,
    tuple(
        Measure(figure.name, figure.rollup.total, figure.rollup.known_s, figure.rollup.greatest)
        for figure in GPU_FIELDS
        if figure.rollup
    ),
)
HOSTS = RollupLevels(
    "host",
    HostSample,
    HostMinute,
    HostHour,
    (
        Measure("cpu_pct", "cpu_pct_s", "cpu_known_s", "cpu_max_pct"),
        Measure("load_1", "load_s", "load_known_s", "load_max"),
        Measure("memory_used_bytes", "memory_byte_s", "memory_known_s", "memory_max_bytes"),
        Measure("swap_used_bytes", None, None, "swap_max_bytes"),
        Measure("disk_read_bps", "disk_read_bytes", "disk_known_s", None),
        Measure("disk_write_bps", "disk_written_bytes", None, None),
        Measure("cpu_pressure_pct", "cpu_pressure_pct_s", "pressure_known_s", None),
        Measure("memory_pressure_pct", "memory_pressure_pct_s", None, None),
        Measure("io_pressure_pct", "io_pressure_pct_s", None, None),
    ),
)


def roll_up(now: datetime) -> dict[str, int]:
    """Update the minutes and hours of GPUs and hosts; returns the number of rows written."""
    until = floor(int(now.timestamp()) - LATE_S, MINUTE_S)
    written: dict[str, int] = {}

    def roll_up_one(item: tuple[RollupLevels, str]) -> None:
        ladder, key = item
        since = _first_minute(ladder, key)
        if since is not None and since < until:
            _count(written, ladder.minutes, _minutes(ladder, key, since, until))
            _count(written, ladder.hours, _hours(ladder, key, since, until))

    isolation = ItemIsolation(settings.CONFIG.node, "rollups", longest_retry=timedelta())
    isolation.each(_all(), lambda item: f"{item[0].key} {item[1]}", roll_up_one, now)
    return written


def safe_to_delete(ladder: RollupLevels, key: str) -> int | None:
    """Samples before this second are rolled up; None: no samples are."""
    last = _last(ladder.minutes, ladder.key, key)
    return None if last is None else last + MINUTE_S


def floor(t: int, step: int) -> int:
    return t - t % step


def start_of(step: int) -> Any:
    """The field `t` rounded down to whole steps."""
    whole = BigIntegerField()
    # PostgreSQL's mod() returns a numeric.
    return Cast(F("t") - Mod(F("t"), Value(step, output_field=whole)), whole)


def sum_columns(ladder: RollupLevels) -> dict[str, Any]:
    """Aggregates that add up rollups of this kind."""
    columns: dict[str, Any] = {"seen_s": Sum("seen_s")}
    for measure in ladder.measures:
        for name in filter(None, (measure.total, measure.known_s)):
            columns[name] = Sum(name)
        if measure.greatest:
            columns[measure.greatest] = Max(measure.greatest)
    return columns


def sample_columns(ladder: RollupLevels) -> dict[str, Any]:
    """Aggregates that make rollups of this kind from samples: each stands for one second."""
    columns: dict[str, Any] = {"seen_s": Count("*")}
    for measure in ladder.measures:
        if measure.total:
            columns[measure.total] = Sum(measure.source, default=0)
        if measure.known_s:
            columns[measure.known_s] = Count(measure.source)
        if measure.greatest:
            columns[measure.greatest] = Max(measure.source)
    return columns


def _all() -> Iterator[tuple[RollupLevels, str]]:
    for uuid in Gpu.objects.values_list("uuid", flat=True):
        yield GPUS, uuid
    for host in HostSample.objects.order_by("host").values_list("host", flat=True).distinct():
        yield HOSTS, host


def _first_minute(ladder: RollupLevels, key: str) -> int | None:
    """The first minute to roll up; None if there is no sample."""
    last = _last(ladder.minutes, ladder.key, key)
    if last is not None:
        return last - REDO_S
    return _next_sample(ladder, key, 0)


def _next_sample(ladder: RollupLevels, key: str, t: int) -> int | None:
    """The minute of the first sample from `t` on."""
    rows = ladder.samples._default_manager.filter(**{ladder.key: key, "t__gte": t})
    first = rows.aggregate(first=Min("t"))["first"]
    return None if first is None else floor(first, MINUTE_S)


def _last(model: type[Model], name: str, key: str) -> int | None:
    last: int | None = model._default_manager.filter(**{name: key}).aggregate(t=Max("t"))["t"]
    return last


def _minutes(ladder: RollupLevels, key: str, since: int, until: int) -> int:
    written = 0
    start = _next_sample(ladder, key, since)
    while start is not None and start < until:
        end = min(start + HOUR_S, until)
        rows = summed(ladder.samples, ladder, key, start, end, MINUTE_S)
        written += write(ladder.minutes, (ladder.key, "t"), rows)
        start = _next_sample(ladder, key, end)
    return written


def _hours(ladder: RollupLevels, key: str, since: int, until: int) -> int:
    last = _last(ladder.hours, ladder.key, key)
    first = ladder.minutes._default_manager.filter(**{ladder.key: key}).aggregate(t=Min("t"))["t"]
    start = floor(first if last is None else min(last, since), HOUR_S)
    written = 0
    for begin in range(start, until, 7 * DAY_S):
        end = min(begin + 7 * DAY_S, until)
        rows = summed(ladder.minutes, ladder, key, begin, end, HOUR_S)
        written += write(ladder.hours, (ladder.key, "t"), rows)
    return written


def summed(
    model: type[Model], ladder: RollupLevels, key: str, since: int, until: int, step: int
) -> list[dict[str, Any]]:
    """Sums by steps, oldest first; steps without a row are left out. The columns are the same

    whether they come from samples, minutes or hours.
    """
    columns = sample_columns(ladder) if model is ladder.samples else sum_columns(ladder)
    rows = model._default_manager.filter(**{ladder.key: key, "t__gte": since, "t__lt": until})
    grouped = rows.annotate(start=start_of(step)).order_by("start").values(ladder.key, "start")
    # Columns must not have the names of the model's own fields.
    named = {f"{name}_": column for name, column in columns.items()}
    return [plain(row) for row in grouped.annotate(**named)]


def plain(row: dict[str, Any]) -> dict[str, Any]:
    """Columns named as in rollups; whole sums are Decimals on PostgreSQL."""
    values = {
        name.removesuffix("_"): int(value) if isinstance(value, Decimal) else value
        for name, value in row.items()
    }
    values["t"] = values.pop("start")
    return values


def write(model: type[Model], identity: tuple[str, str], rows: Iterable[dict[str, Any]]) -> int:
    objects = [model(**row) for row in rows]
    names = {field.attname for field in model._meta.concrete_fields} - {"id", *identity}
    model._default_manager.bulk_create(
        objects,
        update_conflicts=True,
        unique_fields=[name.removesuffix("_id") for name in identity],
        update_fields=list(names),
        batch_size=200,
    )
    return len(objects)


def _count(written: dict[str, int], model: type[Model], rows: int) -> None:
    name = model._meta.model_name or ""
    written[name] = written.get(name, 0) + rows


# The previous hour may still get its last minute.
LATE_MINUTES_S = 60


def roll_up_processes(now: datetime) -> int:
    """Roll up the hours of all processes from the newest one on; it may still get late minutes."""
    now_t = int(now.timestamp())
    last: int | None = ProcessHour.objects.aggregate(t=Max("t"))["t"]
    if last is None:
        last = ProcessMinute.objects.aggregate(t=Min("t"))["t"]
    if last is None:
        return 0
    written = 0
    for begin in range(floor(min(last, now_t - LATE_MINUTES_S), HOUR_S), now_t, 6 * HOUR_S):
        rows = _process_sums(begin, min(begin + 6 * HOUR_S, floor(now_t, HOUR_S) + HOUR_S))
        written += write(ProcessHour, ("use_id", "t"), rows)
    return written


def _process_sums(since: int, until: int) -> Iterable[dict[str, Any]]:
    """Queries by use, because minutes have no index on the time alone."""
    minutes = ProcessMinute.objects.filter(
        use__last_seen_at__gte=datetime.fromtimestamp(since - MINUTE_S, UTC),
        use__first_seen_at__lt=datetime.fromtimestamp(until, UTC),
        t__gte=since,
        t__lt=until,
    )
    grouped: QuerySet[Any, Any] = minutes.annotate(start=start_of(HOUR_S)).order_by()
    sums = ("sm_s", "held_s", "known_s", "memory_byte_s", "joules")
    columns: dict[str, Any] = {f"{name}_": Sum(name) for name in sums}
    columns["memory_known_s_"] = Sum(Coalesce("memory_known_s", "held_s"))
    columns["peak_memory_bytes_"] = Max("peak_memory_bytes")
    return [plain(row) for row in grouped.values("use_id", "start").annotate(**columns)]


# Delete old rows in small chunks, so that other writers do not wait long.


CHUNK = 2000


class RetentionPeriods(Struct, frozen=True):
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


def register_outdated(too_old: TooOld) -> None:
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
    old = floor(int((now - keep.raw).timestamp()), MINUTE_S)
    in_minutes = safe_to_delete(ladder, key) or 0
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
