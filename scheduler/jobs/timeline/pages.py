"""The timeline: its page, and its rows on the dashboard's board; the same for all viewers."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from math import inf
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.template.loader import render_to_string
from django.utils import timezone
from django.views.decorators.http import require_safe
from msgspec import Struct
from msgspec.structs import replace

from monitor.owners import rows as looks
from monitor.pages.frames import Child, Context, Region
from monitor.runtime.policy import TimedCache
from scheduler.dispatch.steps import preview
from scheduler.jobs.timeline import charts
from scheduler.jobs.timeline import rows as timeline_rows
from scheduler.jobs.timeline.charts import (
    AHEAD_S,
    BACK_S,
    Bar,
    BarKind,
    Row,
    Span,
    TimelineGpu,
    UsePiece,
)
from scheduler.jobs.timeline.rows import PastJobs
from scheduler.models import Job

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
    return timeline_rows.pieces(now - BACK, now)


def _load_past(now: datetime) -> PastJobs:
    """Jobs that ended a while ago, with the idle time of their processes, few bars for each GPU."""
    past = timeline_rows.past_jobs(now - BACK)
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
    gpus = timeline_rows.gpus(now - BACK)
    loaded = pieces if pieces is not None else _load_pieces(now)
    goes_on_after = now_t - int(PIECES_KEPT.total_seconds()) - 1
    used, idle = charts.of_pieces(loaded, now_t, goes_on_after)
    past = _past(now)
    jobs = timeline_rows.job_bars(now - BACK, past)
    since_t = now_t - BACK_S
    bars = [
        *used,
        *(bar for bar in past.bars if bar.end and bar.end >= since_t),
        *(charts.with_idle(bar, idle, now_t) for bar in jobs),
        *_expected(now),
    ]
    bands = timeline_rows.bands(gpus, now - BACK, now + AHEAD)
    rows = tuple(charts.rows(gpus, bars, bands))
    return Timeline(rows, len({gpu.host for gpu in gpus}) > 1)


def _expected(now: datetime) -> list[Bar]:
    """The predicted runs of waiting jobs."""
    soon = {
        job: estimate
        for job, estimate in preview.estimates(now).items()
        if estimate.p50 is not None and estimate.gpu_uuids and estimate.p50 < now + AHEAD
    }
    names = timeline_rows.waiting_names(soon)
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
