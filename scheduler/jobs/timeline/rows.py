"""Rows -> facts of the timeline: attempts, processes, time windows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db.models import Max, Min, QuerySet, Sum
from django.db.models.functions import Coalesce
from msgspec import Struct

from monitor.models import Gpu, ProcessHour, ProcessMinute, ProcessUse
from monitor.runtime.rows.database import MARK, TIME_MARK, PreparedQuery
from monitor.usage.rows.rollups import HOUR_S, MINUTE_S, floor, plain, start_of
from scheduler.facts.jobs import JobState
from scheduler.jobs.timeline.charts import Band, Bar, BarKind, TimelineGpu, UsePiece
from scheduler.limits.time_windows import rows as window_rows
from scheduler.limits.time_windows.policy import spans
from scheduler.models import Attempt, Job

# The newest are read each time, older ones that have ended every few minutes.
NEWEST_ATTEMPTS = 2000
# The last hours are looked at in this step, older ones by the hour.
FINE_HOURS, FINE_STEP_S = 2, 5 * MINUTE_S
# A process that was seen so lately is still there.
PRESENT_S = 90
_COLUMNS = ("sm_s", "known_s", "memory_byte_s")
ATTEMPT_COLUMNS = (
    "job_id",
    "job__name",
    "job__owner__username",
    "job__state",
    "outcome",
    "gpu_uuids",
    "placed_at",
    "started_at",
    "ended_at",
    "ends_p50_at",
    "job__agent__name",
)


def gpus(since: datetime) -> list[TimelineGpu]:
    """The GPUs seen since then, by host and index."""
    return [TimelineGpu(*row) for row in _GPUS.rows(since)]


_GPUS: PreparedQuery[datetime, tuple[str, int, str]] = PreparedQuery(
    lambda since: (
        Gpu.objects.filter(last_seen_at__gte=since)
        .order_by("host", "index", "uuid")
        .values_list("uuid", "index", "host")
    ),
    TIME_MARK,
)


class PastJobs(Struct, frozen=True):
    """Attempts before `newest` that had ended, as bars; those that had not are in `open`."""

    newest: int
    open: tuple[int, ...]
    bars: tuple[Bar, ...]


def past_jobs(since: datetime) -> PastJobs:
    """All attempts that ended after `since`, except for the newest ones."""
    attempts = Attempt.objects.order_by("-pk")
    newest = attempts.values_list("pk", flat=True)[NEWEST_ATTEMPTS - 1 : NEWEST_ATTEMPTS].first()
    if newest is None:
        return PastJobs(0, (), ())
    older = attempts.filter(pk__lt=newest)
    ended = older.filter(ended_at__gte=since).values_list(*ATTEMPT_COLUMNS)
    return PastJobs(
        newest,
        tuple(older.filter(ended_at=None).values_list("pk", flat=True)),
        tuple(bar for row in ended.iterator(chunk_size=2000) for bar in _of_attempt(row)),
    )


def job_bars(since: datetime, past: PastJobs) -> list[Bar]:
    """A bar for each attempt and GPU that reaches into the time after `since`, except `past`'s."""
    rows = _NEWEST.rows(past.newest)
    if past.open:
        rows += Attempt.objects.filter(pk__in=past.open).values_list(*ATTEMPT_COLUMNS)
    return [bar for row in rows if row[8] is None or row[8] >= since for bar in _of_attempt(row)]


_NEWEST: PreparedQuery[int, tuple[Any, ...]] = PreparedQuery(
    lambda newest: (
        Attempt.objects.filter(pk__gte=newest).order_by("-pk").values_list(*ATTEMPT_COLUMNS)
    ),
    MARK,
)


def _of_attempt(row: tuple[Any, ...]) -> Iterator[Bar]:
    job, name, owner, state, outcome, uuids, placed_at, started_at, ended_at, ends_at, agent = row
    for uuid in uuids:
        yield Bar(
            gpu_uuid=uuid,
            kind=BarKind.JOB,
            owner=owner,
            label=f"{job} {name}",
            begin=int((started_at or placed_at).timestamp()),
            end=int(ended_at.timestamp()) if ended_at else None,
            job=job,
            state=outcome.replace("_", " ") if ended_at else state,
            expected_end=None if ended_at or ends_at is None else int(ends_at.timestamp()),
            agent=agent or "",
        )


def waiting_names(jobs: Iterable[int]) -> dict[int, tuple[str, str, str]]:
    """{job: (owner, name, agent)} of the jobs that still wait."""
    rows = Job.objects.filter(pk__in=list(jobs), state=JobState.QUEUED.value)
    columns = ("pk", "owner__username", "name", "agent__name")
    return {pk: (owner, name, agent or "") for pk, owner, name, agent in rows.values_list(*columns)}


def pieces(since: datetime, now: datetime) -> list[UsePiece]:
    """Work of processes on GPUs: by the hour, and in the last hours every five minutes."""
    uses = ProcessUse.objects.filter(last_seen_at__gte=since)
    rows = uses.order_by().values_list(
        "pk", "gpu_id", "user", "job_owner", "job_ref", "first_seen_at", "last_seen_at", "ended_at"
    )
    uses_by_id = {row[0]: row[1:] for row in rows}
    fine_t = floor(int(now.timestamp()) - FINE_HOURS * HOUR_S, HOUR_S)
    stretches = [*_hours(int(since.timestamp()), fine_t), *_fine(fine_t)]
    present = now - timedelta(seconds=PRESENT_S)
    return [
        piece
        for use, t, step, sums in stretches
        if use in uses_by_id and (piece := _piece(uses_by_id[use], t, step, sums, now, present))
    ]


def _hours(since_t: int, until_t: int) -> Iterator[tuple[int, int, int, tuple[Any, ...]]]:
    rows = ProcessHour.objects.filter(t__gte=floor(since_t, HOUR_S), t__lt=until_t)
    for use, t, *sums in rows.values_list("use_id", "t", *_COLUMNS, "memory_known_s", "held_s"):
        yield use, t, HOUR_S, tuple(sums)


def _fine(since_t: int) -> Iterator[tuple[int, int, int, tuple[Any, ...]]]:
    minutes: QuerySet[Any, Any] = ProcessMinute.objects.filter(
        use__last_seen_at__gte=datetime.fromtimestamp(since_t - MINUTE_S, UTC), t__gte=since_t
    )
    minutes = minutes.annotate(start=start_of(FINE_STEP_S)).order_by()
    columns: dict[str, Any] = {f"{name}_": Sum(name) for name in _COLUMNS}
    columns["memory_known_s_"] = Sum(Coalesce("memory_known_s", "held_s"))
    columns |= {"held_s_": Sum("held_s"), "first_": Min("t"), "last_": Max("t")}
    for row in minutes.values("use_id", "start").annotate(**columns):
        sums = plain(row)
        yield (
            row["use_id"],
            row["start"],
            FINE_STEP_S,
            tuple(sums[name] for name in (*_COLUMNS, "memory_known_s", "held_s")),
        )


def _piece(
    use: tuple[Any, ...],
    t: int,
    step: int,
    sums: tuple[Any, ...],
    now: datetime,
    present: datetime,
) -> UsePiece | None:
    gpu, user, job_owner, job_ref, first_at, last_at, ended_at = use
    sm_s, known_s, memory_byte_s, memory_known_s, held_s = sums
    is_there = ended_at is None and last_at >= present
    last = now if is_there else last_at
    begin, end = max(t, int(first_at.timestamp())), min(t + step, int(last.timestamp()))
    if end <= begin or (job_ref and not job_ref.isdecimal()):
        return None
    memory_s = held_s if memory_known_s is None else memory_known_s
    return UsePiece(
        gpu_uuid=gpu,
        owner=job_owner or user or None,
        job=int(job_ref) if job_ref else None,
        begin=begin,
        end=end,
        used_pct=100 * sm_s / known_s if known_s and known_s >= 0.8 * held_s else None,
        memory_bytes=memory_byte_s / memory_s if memory_s else None,
    )


def bands(gpus: Iterable[TimelineGpu], since: datetime, until: datetime) -> list[Band]:
    """The occurrences of approved time windows on these GPUs."""
    uuids = [gpu.uuid for gpu in gpus]
    return [
        Band(
            gpu_uuid=uuid,
            holder=window.holder,
            kept=window.kept,
            begin=int(span.start.timestamp()),
            end=int(span.end.timestamp()),
        )
        for window in window_rows.approved()
        for span in spans(window, since, until)
        for uuid in (window.gpu_uuids or uuids)
    ]
