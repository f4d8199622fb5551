"""The timeline: its page, and its rows on the dashboard's board; the same for all viewers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from math import inf
from typing import Any

from django.db.models import Max, Min, QuerySet, Sum
from django.db.models.functions import Coalesce
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.template.loader import render_to_string
from django.utils import timezone
from django.views.decorators.http import require_safe
from msgspec import Struct
from msgspec.structs import replace

from monitor.models import Gpu, ProcessHour, ProcessMinute, ProcessUse
from monitor.owners import rows as looks
from monitor.pages.frames import Child, Context, Region
from monitor.runtime.policy import TimedCache
from monitor.runtime.rows.database import MARK, TIME_MARK, PreparedQuery
from monitor.usage.rows.rollups import HOUR_S, MINUTE_S, floor, plain, start_of
from scheduler import charts
from scheduler.charts import (
    AHEAD_S,
    BACK_S,
    Band,
    Bar,
    BarKind,
    Row,
    Span,
    TimelineGpu,
    UsePiece,
)
from scheduler.dispatch.steps import preview
from scheduler.facts.jobs import JobState
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


def timeline_gpus(since: datetime) -> list[TimelineGpu]:
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


def window_bands(gpus: Iterable[TimelineGpu], since: datetime, until: datetime) -> list[Band]:
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


BACK, AHEAD = timedelta(seconds=BACK_S), timedelta(seconds=AHEAD_S)
# How old jobs and their predictions may be, and what processes did.
KEPT, PIECES_KEPT = timedelta(seconds=3), timedelta(seconds=20)
# Jobs that ended a while ago change no more.
PAST_KEPT = timedelta(minutes=10)
# Bars of the table, newest first.
MOST_LISTED = 300
MANY_GPUS = 16
# A waiting job's page shows these of the GPUs that it could use, and a shorter past.
MOST_AHEAD_ROWS, JOB_BACK_S = 8, 3600


class Timeline(Struct, frozen=True):
    """All rows. several: there is more than one host."""

    rows: tuple[Row, ...]
    several: bool

    @property
    def many(self) -> bool:
        return len(self.rows) > MANY_GPUS


class Choice(Struct, frozen=True):
    """The filter of the page, from its address; "" = all."""

    host: str = ""
    owner: str = ""

    def __bool__(self) -> bool:
        return bool(self.host or self.owner)

    def of(self, shown: Timeline) -> Timeline:
        rows = [row for row in shown.rows if self.host in ("", row.gpu.host)]
        if self.owner:
            rows = [_only(row, self.owner) for row in rows]
        return replace(shown, rows=tuple(rows))


def _only(row: Row, owner: str) -> Row:
    return replace(row, bars=tuple(entry for entry in row.bars if entry[0].owner == owner))


def _load_pieces(now: datetime) -> list[UsePiece]:
    return pieces(now - BACK, now)


def _load_past(now: datetime) -> PastJobs:
    """Jobs that ended a while ago, with the idle time of their processes, few bars for each GPU."""
    past = past_jobs(now - BACK)
    if not past.bars:
        return past
    now_t = int(now.timestamp())
    _, idle = charts.of_pieces(_pieces(now), now_t, now_t)
    bars_on: dict[str, list[Bar]] = {}
    for bar in past.bars:
        bars_on.setdefault(bar.gpu_uuid, []).append(charts.with_idle(bar, idle, now_t))
    bars = tuple(bar for bars in bars_on.values() for bar in charts.condensed(bars))
    return replace(past, bars=bars)


_pieces = TimedCache(_load_pieces, PIECES_KEPT)
_past = TimedCache(_load_past, PAST_KEPT)


def build(now: datetime, pieces: list[UsePiece] | None = None) -> Timeline:
    """The timeline now. `pieces`: what processes did."""
    now_t = int(now.timestamp())
    gpus = timeline_gpus(now - BACK)
    loaded = pieces if pieces is not None else _load_pieces(now)
    goes_on_after = now_t - int(PIECES_KEPT.total_seconds()) - 1
    used, idle = charts.of_pieces(loaded, now_t, goes_on_after)
    past = _past(now)
    jobs = job_bars(now - BACK, past)
    since_t = now_t - BACK_S
    bars = [
        *used,
        *(bar for bar in past.bars if bar.end and bar.end >= since_t),
        *(charts.with_idle(bar, idle, now_t) for bar in jobs),
        *_expected(now),
    ]
    bands = window_bands(gpus, now - BACK, now + AHEAD)
    rows = tuple(charts.rows(gpus, bars, bands))
    return Timeline(rows, len({gpu.host for gpu in gpus}) > 1)


def _expected(now: datetime) -> list[Bar]:
    """The predicted runs of waiting jobs."""
    soon = {
        job: estimate
        for job, estimate in preview.estimates(now).items()
        if estimate.p50 is not None and estimate.gpu_uuids and estimate.p50 < now + AHEAD
    }
    names = waiting_names(soon)
    return [
        Bar(
            gpu_uuid=uuid,
            kind=BarKind.EXPECTED,
            owner=names[job][0],
            label=f"{job} {names[job][1]}",
            begin=int(estimate.p50.timestamp()),
            end=None,
            job=job,
            state="expected",
            expected_end=int(estimate.end.timestamp()) if estimate.end else None,
            agent=names[job][2],
        )
        for job, estimate in soon.items()
        if job in names and estimate.p50 is not None
        for uuid in estimate.gpu_uuids
    ]


_shown = TimedCache(lambda now: build(now, _pieces(now)), KEPT)


def forget() -> None:
    """Look anew at once."""
    global _pieces, _past, _shown
    _pieces = TimedCache(_load_pieces, PIECES_KEPT)
    _past = TimedCache(_load_past, PAST_KEPT)
    _shown = TimedCache(lambda now: build(now, _pieces(now)), KEPT)


def load(now: datetime) -> Context:
    return context(_shown(now), now)


def context(shown: Timeline, now: datetime, back_s: int = BACK_S) -> Context:
    """Template variables. The rows are rendered one by one."""
    span = charts.span(int(now.timestamp()), back_s)
    bars = (bar for row in shown.rows for bar, _ in row.bars)
    return {
        "timeline": shown,
        "span": span,
        "ticks": _ticks(span, now),
        "legend": sorted({bar.owner for bar in bars if bar.owner}),
        "looks": looks.refresh(now),
    }


def _ticks(span: Span, now: datetime) -> Any:
    offset = now.astimezone(timezone.get_current_timezone()).utcoffset()
    return span.ticks(offset.total_seconds() if offset else 0)


class Occupied(Struct, frozen=True):
    """The work on a GPU now. planned: the waiting job is expected there."""

    gpu: TimelineGpu
    bars: tuple[Bar, ...]
    planned: bool

    @property
    def free_at(self) -> float:
        """Epoch seconds; infinite if the end of something on it is unknown."""
        return max((bar.expected_end or inf for bar in self.bars), default=0.0)


def of_waiting(job: Job, now: datetime) -> Context:
    """Expected ends on the GPUs that a waiting job could use; {} if there are none.

    Of many GPUs, those come first on which the job is expected, then those that are free first.
    """
    possible = set(preview.possible_gpus(job, now))
    shown = _shown(now)
    rows = [row for row in shown.rows if row.gpu.uuid in possible]
    occupied = {row.gpu.uuid: _occupied(row, job.pk) for row in rows}
    rows.sort(key=lambda row: (not occupied[row.gpu.uuid].planned, occupied[row.gpu.uuid].free_at))
    near = sorted(rows[:MOST_AHEAD_ROWS], key=lambda row: (row.gpu.host, row.gpu.index))
    if not near:
        return {}
    loaded = context(replace(shown, rows=tuple(near)), now, JOB_BACK_S)
    return loaded | {
        "children": _whole(loaded),
        "occupied": [occupied[row.gpu.uuid] for row in near],
        "further": len(rows) - len(near),
    }


def _occupied(row: Row, job: int) -> Occupied:
    now_on_it = (bar for bar, _ in row.bars if bar.end is None and bar.kind != BarKind.EXPECTED)
    planned = any(bar.job == job and bar.kind == BarKind.EXPECTED for bar, _ in row.bars)
    return Occupied(row.gpu, tuple(now_on_it), planned)


def _whole(loaded: Context) -> str:
    return "".join(render_to_string(child.template, child.context) for child in children(loaded))


def version(loaded: Context) -> object:
    """Content of the frame around the rows; times in it belong to the browser."""
    shown = loaded["timeline"]
    return [row.gpu for row in shown.rows], shown.several, loaded["legend"]


def children(loaded: Mapping[str, Any]) -> list[Child]:
    """A part for each row; its times are absolute, so a row changes only when its bars do.

    Forecasts shift by seconds all the time: a minute is less than a pixel, and all that is told.
    """
    shown, span = loaded["timeline"], loaded["span"]
    more = {"span": span, "several": shown.several, "many": shown.many}
    return [
        Child(
            row.element_id,
            (charts.by_minute(row), shown.many, span.base),
            "scheduler/_timeline_row.html",
            {"row": row} | more,
            row.gpu.uuid,
        )
        for row in shown.rows
    ]


REGION = Region(
    "timeline",
    "scheduler/_timeline.html",
    load,
    version,
    row_layers=("scheduler/_timeline_back.html", "scheduler/_timeline_keys.html"),
    children=children,
)


@require_safe
def timeline(request: HttpRequest) -> HttpResponse:
    """The timeline with its filters and its table."""
    now = timezone.now()
    everything = _shown(now)
    choice = Choice(request.GET.get("host", ""), request.GET.get("owner", ""))
    shown = choice.of(everything)
    bars = [(row.gpu, bar) for row in shown.rows for bar, _ in row.bars]
    bars.sort(key=lambda entry: -entry[1].begin)
    body: dict[str, Any] = {
        **context(shown, now),
        "choice": choice,
        "hosts": sorted({row.gpu.host for row in everything.rows}),
        "owners": sorted({b.owner for row in everything.rows for b, _ in row.bars if b.owner}),
        "bars": bars[:MOST_LISTED],
        "more": max(0, len(bars) - MOST_LISTED),
        "region": REGION,
    }
    body["children"] = _whole(body)
    return render(request, "scheduler/timeline.html", body)
