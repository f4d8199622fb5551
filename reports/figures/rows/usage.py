"""Rows -> facts: usage of GPUs by processes and bookings, in steps of at most an hour."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from itertools import groupby
from operator import itemgetter
from typing import Any

from django.db.models import Q, QuerySet, Sum
from django.db.models.functions import Coalesce

from monitor.models import (
    Claim,
    Gpu,
    GpuHour,
    GpuMinute,
    ProcessHour,
    ProcessMinute,
    ProcessUse,
)
from monitor.usage.rows.processes import SUMS
from reports.figures.policy.jobs import Waiting
from reports.figures.policy.ledger import ClaimPart, GpuPart, Step, UseFact, UsePart
from reports.periods.facts import Period, Scope, ScopeKind

HOUR_S = 3600
# A process is seen every few seconds; its row tells so a little later.
SLACK_S = 120
_USE = (
    "id",
    "gpu_id",
    "host",
    "user",
    "job_owner",
    "first_seen_at",
    "pid",
    "start_ticks",
    "program",
    "container",
    "uid",
    "job_ref",
)
Parts = Mapping[str, list[UsePart]]


def gpus(scope: Scope, period: Period) -> list[Gpu]:
    """GPUs of the scope that were there in the period, by host and index."""
    rows = Gpu.objects.filter(first_seen_at__lt=period.until, last_seen_at__gte=period.since)
    if scope.kind is ScopeKind.GPU:
        rows = rows.filter(uuid=scope.name)
    elif scope.kind is ScopeKind.HOST:
        rows = rows.filter(host=scope.name)
    return list(rows.order_by("host", "index", "uuid"))


def alive(gpus: Iterable[Gpu], since: float, until: float) -> QuerySet[ProcessUse]:
    """Processes on these GPUs in the time."""
    return ProcessUse.objects.filter(
        gpu_id__in=[gpu.uuid for gpu in gpus],
        last_seen_at__gte=datetime.fromtimestamp(since - SLACK_S, UTC),
        first_seen_at__lt=datetime.fromtimestamp(until, UTC),
    )


def uses(gpus: Iterable[Gpu], period: Period) -> dict[int, UseFact]:
    """By number. Processes of a job belong to the owner of the job."""
    rows = alive(gpus, period.since.timestamp(), period.until.timestamp())
    facts = {}
    for row in rows.values_list(*_USE).iterator(chunk_size=2000):
        id_, gpu, host, user, job_owner, first, pid, ticks, program, container, uid, ref = row
        facts[id_] = UseFact(
            id=id_,
            gpu=gpu,
            host=host,
            owner=job_owner or user or None,
            first_t=first.timestamp(),
            pid=pid,
            start_ticks=ticks,
            program=program,
            container=container,
            uid=uid,
            job_ref=ref,
            is_job=bool(ref or job_owner),
        )
    return facts


def steps(
    gpus: list[Gpu],
    uses: Mapping[int, UseFact],
    period: Period,
    waiting: Mapping[int, Waiting],
    now: datetime,
) -> Iterator[Step]:
    """The period in steps, oldest first: whole hours, and parts of an hour at its edges.

    waiting: waits by the begin of an hour.
    """
    since, until = int(period.since.timestamp()), int(period.until.timestamp())
    first, last = -(-since // HOUR_S) * HOUR_S, until // HOUR_S * HOUR_S
    claims = _claims(gpus, since, until, now)
    nothing: Mapping[str, list[ClaimPart]] = {}
    if first > last:
        yield _edge(gpus, uses, since, until, claims, waiting)
        return
    if since < first:
        yield _edge(gpus, uses, since, first, claims, waiting)
    readings = _gpu_hours(gpus, first, last)
    parts = _process_hours(uses, first, last)
    pending = next(parts, None)
    for begin in range(first, last, HOUR_S):
        its: Parts = {}
        if pending is not None and pending[0] == begin:
            its, pending = pending[1], next(parts, None)
        yield Step(
            begin,
            begin + HOUR_S,
            readings.get(begin, {}),
            its,
            claims.get(begin, nothing),
            waiting.get(begin, Waiting()),
        )
    if last < until:
        yield _edge(gpus, uses, last, until, claims, waiting)


def used_before(period: Period, scope_gpus: Iterable[Gpu]) -> dict[str | None, tuple[Any, ...]]:
    """{owner: (seconds used, held, known)} of whole hours: for the trend, cheaper than steps."""
    since, until = int(period.since.timestamp()), int(period.until.timestamp())
    rows: QuerySet[Any] = ProcessHour.objects.filter(
        t__gte=since // HOUR_S * HOUR_S, t__lt=until // HOUR_S * HOUR_S
    )
    grouped = rows.order_by().values("use__gpu_id", "use__job_owner", "use__user")
    wanted = {gpu.uuid for gpu in scope_gpus}
    sums_by_owner: dict[str | None, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    for row in grouped.annotate(a=Sum("sm_s"), b=Sum("held_s"), c=Sum("known_s")):
        if row["use__gpu_id"] in wanted:
            sums = sums_by_owner[row["use__job_owner"] or row["use__user"] or None]
            for i, name in enumerate("abc"):
                sums[i] += row[name] or 0.0
    return {owner: tuple(sums) for owner, sums in sums_by_owner.items()}


def _gpu_hours(gpus: Iterable[Gpu], since: int, until: int) -> dict[int, dict[str, GpuPart]]:
    wanted = [gpu.uuid for gpu in gpus]
    rows = GpuHour.objects.filter(gpu_id__in=wanted, t__gte=since, t__lt=until).values_list(
        "t",
        "gpu_id",
        "seen_s",
        "utilization_pct_s",
        "utilization_known_s",
        "energy_j",
        "power_known_s",
    )
    hours: dict[int, dict[str, GpuPart]] = {}
    for t, gpu, seen_s, busy, known_s, energy, power in rows.iterator(chunk_size=2000):
        part = GpuPart(seen_s, busy / 100 if known_s else None, energy, power)
        hours.setdefault(t, {})[gpu] = part
    return hours


def _process_hours(
    uses: Mapping[int, UseFact], since: int, until: int
) -> Iterator[tuple[int, Parts]]:
    """(begin, parts by GPU) of each hour with any, oldest first."""
    rows = ProcessHour.objects.filter(t__gte=since, t__lt=until).order_by("t")
    columns = rows.values_list("use_id", *SUMS, "memory_known_s", "t")
    for t, group in groupby(columns.iterator(chunk_size=5000), key=itemgetter(-1)):
        yield t, _by_gpu(group, uses)


def _edge(
    gpus: list[Gpu],
    uses: Mapping[int, UseFact],
    since: int,
    until: int,
    claims: Mapping[int, Mapping[str, list[ClaimPart]]],
    waiting: Mapping[int, Waiting],
) -> Step:
    """A part of an hour, from minutes; without minutes the same part of the hour's sums."""
    hour = since // HOUR_S * HOUR_S
    readings = _gpu_minutes(gpus, since, until)
    rows: Iterable[Any] = _minutes(gpus, since, until)
    if not readings:
        factor = (until - since) / HOUR_S
        readings = {
            gpu: GpuPart(
                part.seen_s * factor,
                None if part.busy_s is None else part.busy_s * factor,
                part.energy_j * factor,
                part.power_known_s * factor,
            )
            for gpu, part in _gpu_hours(gpus, hour, hour + HOUR_S).get(hour, {}).items()
        }
        hours = ProcessHour.objects.filter(t=hour)
        columns = hours.values_list("use_id", *SUMS, "memory_known_s")
        rows = rows or [(row[0], *(_times(value, factor) for value in row[1:])) for row in columns]
    return Step(
        since,
        until,
        readings,
        _by_gpu(rows, uses),
        claims.get(hour, {}),
        waiting.get(hour, Waiting()),
    )


def _times(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def _gpu_minutes(gpus: Iterable[Gpu], since: int, until: int) -> dict[str, GpuPart]:
    wanted = [gpu.uuid for gpu in gpus]
    rows: QuerySet[Any] = GpuMinute.objects.filter(gpu_id__in=wanted, t__gte=since, t__lt=until)
    grouped = rows.order_by().values("gpu_id")
    columns = ("seen_s", "utilization_pct_s", "utilization_known_s", "energy_j", "power_known_s")
    sums = grouped.annotate(**{f"{name}_": Sum(name) for name in columns})
    parts = {}
    for row in sums:
        seen_s, busy, known_s, energy, power = (row[f"{name}_"] for name in columns)
        parts[row["gpu_id"]] = GpuPart(
            float(seen_s), busy / 100 if known_s else None, energy, float(power)
        )
    return parts


def _minutes(gpus: Iterable[Gpu], since: int, until: int) -> list[tuple[Any, ...]]:
    rows: QuerySet[Any] = ProcessMinute.objects.filter(
        use_id__in=alive(gpus, since, until).values("pk"), t__gte=since, t__lt=until
    )
    grouped = rows.order_by().values("use_id")
    columns = {f"{name}_": Sum(name) for name in SUMS}
    sums = grouped.annotate(**columns, memory_=Sum(Coalesce("memory_known_s", "held_s")))
    names = (*(f"{name}_" for name in SUMS), "memory_")
    return [(row["use_id"], *(row[name] for name in names)) for row in sums]


def _by_gpu(
    rows: Iterable[tuple[Any, ...]], uses: Mapping[int, UseFact]
) -> dict[str, list[UsePart]]:
    parts: dict[str, list[UsePart]] = {}
    for use_id, sm, held, known_s, memory, joules, memory_known, *_ in rows:
        use = uses.get(use_id)
        if use is not None:
            # Rows of older versions do not say for how long the memory was known.
            measured = held if memory_known is None else memory_known
            part = UsePart(use, sm, held, known_s, memory, measured, joules)
            parts.setdefault(use.gpu, []).append(part)
    return parts


def _claims(
    gpus: Iterable[Gpu], since: int, until: int, now: datetime
) -> dict[int, dict[str, list[ClaimPart]]]:
    """Bookings by the begin of each hour that they touch."""
    begin, end = (datetime.fromtimestamp(t, UTC) for t in (since, until))
    rows = Claim.objects.filter(
        Q(until_at__isnull=True) | Q(until_at__gt=begin),
        gpu_id_in(gpus),
        from_at__lt=end,
    )
    claims: dict[int, dict[str, list[ClaimPart]]] = {}
    for gpu, owner, from_at, until_at in rows.values_list(
        "gpu_uuid", "owner", "from_at", "until_at"
    ):
        start, stop = from_at.timestamp(), min(until, (until_at or now).timestamp())
        part = ClaimPart(owner, start, stop)
        for hour in range(int(max(start, since)) // HOUR_S * HOUR_S, int(stop) + 1, HOUR_S):
            claims.setdefault(hour, {}).setdefault(gpu, []).append(part)
    return claims


def gpu_id_in(gpus: Iterable[Gpu]) -> Q:
    return Q(gpu_uuid__in=[gpu.uuid for gpu in gpus])
