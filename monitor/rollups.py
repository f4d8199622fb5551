"""Rows: samples are added up to minutes, minutes to hours. Doing it again changes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

from django.db.models import BigIntegerField, Count, F, Max, Min, Model, Sum, Value
from django.db.models.functions import Cast, Mod

from monitor.models import (
    Gpu,
    GpuHour,
    GpuMinute,
    HostHour,
    HostMinute,
    HostSample,
    Sample,
)

MINUTE_S, HOUR_S, DAY_S = 60, 3600, 86400
# A sample may be committed so much later than it was read.
LATE_S = 15
# The newest minutes are made anew each time, in case a sample came later still.
REDO_S = 120


@dataclass(frozen=True, slots=True)
class Measure:
    """A measured field, and where its sum, its known seconds and its greatest value go."""

    source: str
    total: str | None
    known: str | None
    greatest: str | None


@dataclass(frozen=True, slots=True)
class Ladder:
    """Samples, minutes and hours of one kind of thing, which the field `key` names."""

    key: str
    samples: type[Model]
    minutes: type[Model]
    hours: type[Model]
    measures: tuple[Measure, ...]


GPUS = Ladder(
    "gpu_id",
    Sample,
    GpuMinute,
    GpuHour,
    (
        Measure(
            "utilization_pct", "utilization_pct_s", "utilization_known_s", "utilization_max_pct"
        ),
        Measure("memory_used_bytes", "memory_byte_s", "memory_known_s", "memory_max_bytes"),
        Measure("power_w", "energy_j", "power_known_s", "power_max_w"),
        Measure("temperature_c", None, None, "temperature_max_c"),
    ),
)
HOSTS = Ladder(
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
    """Bring the minutes and hours of GPUs and hosts up to date; how many rows were written."""
    until = floor(int(now.timestamp()) - LATE_S, MINUTE_S)
    written: dict[str, int] = {}
    for ladder, key in _all():
        since = _first_minute(ladder, key)
        if since is None or since >= until:
            continue
        _count(written, ladder.minutes, _minutes(ladder, key, since, until))
        _count(written, ladder.hours, _hours(ladder, key, since, until))
    return written


def safe_to_delete(ladder: Ladder, key: str) -> int | None:
    """Samples before this second are in minutes; None when none are."""
    last = _last(ladder.minutes, ladder.key, key)
    return None if last is None else last + MINUTE_S


def floor(t: int, step: int) -> int:
    return t - t % step


def start_of(step: int) -> Any:
    """The field `t` rounded down to whole steps."""
    whole = BigIntegerField()
    # PostgreSQL's mod() makes a numeric of it.
    return Cast(F("t") - Mod(F("t"), Value(step, output_field=whole)), whole)


def sum_columns(ladder: Ladder) -> dict[str, Any]:
    """Aggregates that add up rollups of this kind."""
    columns: dict[str, Any] = {"seen_s": Sum("seen_s")}
    for measure in ladder.measures:
        for name in filter(None, (measure.total, measure.known)):
            columns[name] = Sum(name)
        if measure.greatest:
            columns[measure.greatest] = Max(measure.greatest)
    return columns


def sample_columns(ladder: Ladder) -> dict[str, Any]:
    """Aggregates that make rollups of this kind from samples: each stands for one second."""
    columns: dict[str, Any] = {"seen_s": Count("*")}
    for measure in ladder.measures:
        if measure.total:
            columns[measure.total] = Sum(measure.source, default=0)
        if measure.known:
            columns[measure.known] = Count(measure.source)
        if measure.greatest:
            columns[measure.greatest] = Max(measure.source)
    return columns


def _all() -> Iterator[tuple[Ladder, str]]:
    for uuid in Gpu.objects.values_list("uuid", flat=True):
        yield GPUS, uuid
    for host in HostSample.objects.order_by("host").values_list("host", flat=True).distinct():
        yield HOSTS, host


def _first_minute(ladder: Ladder, key: str) -> int | None:
    """The first minute to make; None when there is no sample."""
    last = _last(ladder.minutes, ladder.key, key)
    if last is not None:
        return last - REDO_S
    return _next_sample(ladder, key, 0)


def _next_sample(ladder: Ladder, key: str, t: int) -> int | None:
    """The minute of the first sample from `t` on."""
    rows = ladder.samples._default_manager.filter(**{ladder.key: key, "t__gte": t})
    first = rows.aggregate(first=Min("t"))["first"]
    return None if first is None else floor(first, MINUTE_S)


def _last(model: type[Model], name: str, key: str) -> int | None:
    last: int | None = model._default_manager.filter(**{name: key}).aggregate(t=Max("t"))["t"]
    return last


def _minutes(ladder: Ladder, key: str, since: int, until: int) -> int:
    written = 0
    start = _next_sample(ladder, key, since)
    while start is not None and start < until:
        end = min(start + HOUR_S, until)
        rows = summed(ladder.samples, ladder, key, start, end, MINUTE_S)
        written += write(ladder.minutes, (ladder.key, "t"), rows)
        start = _next_sample(ladder, key, end)
    return written


def _hours(ladder: Ladder, key: str, since: int, until: int) -> int:
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
    model: type[Model], ladder: Ladder, key: str, since: int, until: int, step: int
) -> list[dict[str, Any]]:
    """Sums by steps, oldest first; steps without a row are left out. The columns are the same

    whether they come from samples, minutes or hours.
    """
    columns = sample_columns(ladder) if model is ladder.samples else sum_columns(ladder)
    rows = model._default_manager.filter(**{ladder.key: key, "t__gte": since, "t__lt": until})
    grouped = rows.annotate(start=start_of(step)).order_by("start").values(ladder.key, "start")
    # Names of columns may not be those of the model's own fields.
    named = {f"{name}_": column for name, column in columns.items()}
    return [plain(row) for row in grouped.annotate(**named)]


def plain(row: dict[str, Any]) -> dict[str, Any]:
    """The names of columns as they are in rollups; whole sums are Decimals on PostgreSQL."""
    values = {
        name.removesuffix("_"): int(value) if isinstance(value, Decimal) else value
        for name, value in row.items()
    }
    values["t"] = values.pop("start")
    return values


def write(model: type[Model], identity: tuple[str, str], rows: Iterable[dict[str, Any]]) -> int:
    made = [model(**row) for row in rows]
    names = {field.attname for field in model._meta.concrete_fields} - {"id", *identity}
    model._default_manager.bulk_create(
        made,
        update_conflicts=True,
        unique_fields=[name.removesuffix("_id") for name in identity],
        update_fields=list(names),
        batch_size=200,
    )
    return len(made)


def _count(written: dict[str, int], model: type[Model], rows: int) -> None:
    name = model._meta.model_name or ""
    written[name] = written.get(name, 0) + rows
