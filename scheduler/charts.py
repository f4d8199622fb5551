"""Policy of the timeline: stretches become bars, bars share the row of their GPU; pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime, time, timedelta
from enum import StrEnum
from zoneinfo import ZoneInfo

from msgspec import Struct
from msgspec.structs import replace

from monitor.facts.accounts import submitter
from monitor.usage.charts import Tick, time_ticks
from scheduler.facts.people import Window
from scheduler.limits.time_windows.policy import about, spans

# Content of the timeline: bars of jobs and of other use on each GPU, and bands of time windows.
#
# Times are epoch seconds.


class BarKind(StrEnum):
    """job: of the queue · use: outside the queue · expected: a waiting job's predicted run."""

    JOB = "job"
    USE = "use"
    EXPECTED = "expected"


class Bar(Struct, frozen=True, kw_only=True):
    """One job, or one user outside the queue, on one GPU.

    end None: it goes on. expected_end None: unknown. state: the word of the job's state.
    idle: stretches in which it held memory that nothing used. agent: the owner's agent that
    submitted the job, "" = none. count: above 1, it stands for so many short ones of one owner,
    which together took `taken` of its time.
    """

    gpu_uuid: str
    kind: BarKind
    owner: str | None
    label: str
    begin: int
    end: int | None
    job: int | None = None
    state: str = ""
    expected_end: int | None = None
    idle: tuple[tuple[int, int], ...] = ()
    agent: str = ""
    count: int = 1
    taken: tuple[tuple[int, int], ...] = ()

    @property
    def stretches(self) -> tuple[tuple[int, int], ...]:
        """The time that it stands for; of one that goes on without an expected end, the begin."""
        last = self.end or self.expected_end or self.begin
        return self.taken if self.count > 1 else ((self.begin, last),)

    @property
    def submitter(self) -> str:
        return submitter(self.owner, self.agent) if self.owner else "owner unknown"


class Band(Struct, frozen=True, kw_only=True):
    """One occurrence of a time window on a GPU. kept: the GPU is reserved for the holder."""

    gpu_uuid: str
    holder: str
    kept: bool
    begin: int
    end: int


class TimelineGpu(Struct, frozen=True):
    uuid: str
    index: int
    host: str


class UsePiece(Struct, frozen=True):
    """A process outside the queue, or of a job, on a GPU in one step of the history.

    used_pct None: not measured.
    """

    gpu_uuid: str
    owner: str | None
    job: int | None
    begin: int
    end: int
    used_pct: float | None
    memory_bytes: float | None


BACK_S, AHEAD_S = 24 * 3600, 6 * 3600
DAY_S = 24 * 3600
# Below this use, and from this memory on, a stretch is memory held idle.
IDLE_BELOW_PCT, IDLE_FROM_BYTES = 5.0, 1024**3
# A shorter pause between two processes of one user does not split their bar.
JOINED_S = 120
# More bars at one time share the last lane.
MOST_LANES = 4
# In a row of more bars, short ones of one owner become one bar. It begins with bars and pauses
# of this length, and doubles it as often as necessary.
MANY_BARS, SHORT_S = 80, 120
# Of all rows together, but of each at least the second: browsers draw them anew each second.
MOST_BARS, LEAST_BARS = 1280, 16
Stretch = tuple[int, int]
Key = tuple[str, str | None, int | None]


class Row(Struct, frozen=True):
    """A GPU with its bars, each with its lane, and its bands."""

    gpu: TimelineGpu
    bars: tuple[tuple[Bar, int], ...]
    bands: tuple[Band, ...]
    lanes: int

    @property
    def element_id(self) -> str:
        return f"tl-{self.gpu.uuid}"


class Span(Struct, frozen=True):
    """The shown time, from `since` to `until`, with `now` in between."""

    since: int
    until: int
    now: int

    @property
    def base(self) -> int:
        """The zero of the rows' coordinates: SVG has too few digits for epoch seconds."""
        return self.now // DAY_S * DAY_S

    def x(self, t: float) -> float:
        """A time as percent of the width, within 0 to 100."""
        share = (t - self.since) / (self.until - self.since)
        return round(100 * min(1.0, max(0.0, share)), 3)

    def width(self, begin: float, end: float) -> float:
        """At least a sliver, so that short jobs can be seen."""
        return round(max(0.08, self.x(end) - self.x(begin)), 3)

    def ticks(self, zone_offset_s: float) -> tuple[Tick, ...]:
        return time_ticks(self.since, self.until, most=10, offset=zone_offset_s)


def span(now: int, back_s: int = BACK_S, ahead_s: int = AHEAD_S) -> Span:
    return Span(now - back_s, now + ahead_s, now)


def of_pieces(
    pieces: Iterable[UsePiece], now: int, goes_on_after: int
) -> tuple[list[Bar], dict[Key, tuple[Stretch, ...]]]:
    """Bars of use outside the queue, and the idle stretches of every (GPU, owner, job).

    A bar that reaches `goes_on_after` goes on. Stretches without a measurement are not idle.
    """
    used: dict[Key, list[Stretch]] = {}
    busy: dict[Key, list[Stretch]] = {}
    for piece in sorted(pieces, key=lambda p: p.begin):
        key = (piece.gpu_uuid, piece.owner, piece.job)
        used.setdefault(key, []).append((piece.begin, piece.end))
        if not _is_idle(piece):
            busy.setdefault(key, []).append((piece.begin, piece.end))
    idle = {key: without(joined(spans), busy.get(key, [])) for key, spans in used.items()}
    bars = [
        Bar(
            gpu_uuid=gpu_uuid,
            kind=BarKind.USE,
            owner=owner,
            label=owner or "owner unknown",
            begin=begin,
            end=None if end >= goes_on_after else min(end, now),
            idle=tuple((max(a, begin), min(b, end)) for a, b in idle[key] if a < end and b > begin),
        )
        for key, spans in used.items()
        for gpu_uuid, owner, job in [key]
        if job is None
        for begin, end in joined(spans, JOINED_S)
    ]
    return bars, idle


def _is_idle(piece: UsePiece) -> bool:
    return (
        piece.used_pct is not None
        and piece.used_pct < IDLE_BELOW_PCT
        and piece.memory_bytes is not None
        and piece.memory_bytes >= IDLE_FROM_BYTES
    )


def joined(stretches: Iterable[Stretch], pause_s: int = 0) -> tuple[Stretch, ...]:
    """The stretches, those joined that overlap or follow within `pause_s`."""
    spans: list[Stretch] = []
    for begin, end in sorted(stretches):
        if spans and begin <= spans[-1][1] + pause_s:
            spans[-1] = (spans[-1][0], max(spans[-1][1], end))
        elif end > begin:
            spans.append((begin, end))
    return tuple(spans)


def without(stretches: Iterable[Stretch], taken: Iterable[Stretch]) -> tuple[Stretch, ...]:
    """The parts of disjoint `stretches` that no `taken` stretch covers."""
    holes = joined(taken)
    left: list[Stretch] = []
    for begin, end in stretches:
        at = begin
        for a, b in holes:
            if b <= at or a >= end:
                continue
            if a > at:
                left.append((at, a))
            at = max(at, b)
        if at < end:
            left.append((at, end))
    return tuple(left)


def with_idle(bar: Bar, idle: Mapping[Key, Sequence[Stretch]], now: int) -> Bar:
    """A job's bar with the idle stretches of its processes."""
    end = bar.end or now
    spans = idle.get((bar.gpu_uuid, bar.owner, bar.job), ())
    clipped = tuple((max(a, bar.begin), min(b, end)) for a, b in spans if a < end and b > bar.begin)
    return replace(bar, idle=clipped)


def rows(gpus: Sequence[TimelineGpu], bars: Iterable[Bar], bands: Iterable[Band]) -> list[Row]:
    """A row for each GPU, in the order of `gpus`."""
    bars_on: dict[str, list[Bar]] = {}
    for bar in bars:
        bars_on.setdefault(bar.gpu_uuid, []).append(bar)
    bands_on: dict[str, list[Band]] = {}
    for band in bands:
        bands_on.setdefault(band.gpu_uuid, []).append(band)
    most = min(MANY_BARS, max(LEAST_BARS, MOST_BARS // max(1, len(gpus))))
    return [_row(gpu, bars_on.get(gpu.uuid, []), bands_on.get(gpu.uuid, []), most) for gpu in gpus]


def _row(gpu: TimelineGpu, bars: list[Bar], bands: list[Band], most: int) -> Row:
    placed, lanes = _in_lanes(sorted(condensed(bars, most), key=_in_time))
    return Row(gpu, tuple(placed), tuple(bands), lanes)


def by_minute(row: Row) -> Row:
    """With expected times cut to the minute, to compare rows."""
    return replace(row, bars=tuple((_by_minute(bar), lane) for bar, lane in row.bars))


def _by_minute(bar: Bar) -> Bar:
    if bar.expected_end is None and bar.kind is not BarKind.EXPECTED:
        return bar
    begin = _minute(bar.begin) if bar.kind is BarKind.EXPECTED else bar.begin
    end = None if bar.expected_end is None else _minute(bar.expected_end)
    return replace(bar, begin=begin, expected_end=end)


def _minute(t: int) -> int:
    return t - t % 60


def _in_time(bar: Bar) -> tuple[int, str, int]:
    return bar.begin, bar.kind, bar.job or 0


def condensed(bars: Sequence[Bar], most: int = MANY_BARS) -> list[Bar]:
    """At most so many of the bars of one GPU, as far as joining short ones gets there.

    Joined are bars of one owner and kind. None is left out, and the time that they take is kept.
    A job that runs keeps its own bar.
    """
    left, short_s = list(bars), SHORT_S
    if len(left) <= most:
        return left
    whole_s = max(map(_last, left)) - min(bar.begin for bar in left)
    while len(left) > most and short_s < 2 * whole_s:
        left = _joined_up_to(left, short_s)
        short_s *= 2
    return left


def _joined_up_to(bars: Iterable[Bar], short_s: int) -> list[Bar]:
    """The bars; those of up to `short_s` joined over pauses of up to `short_s`."""
    kept: list[Bar] = []
    # Of each owner and kind: runs of bars, each with its end.
    groups: dict[tuple[BarKind, str | None, str], list[tuple[int, list[Bar]]]] = {}
    for bar in sorted(bars, key=_in_time):
        last = bar.end or (bar.expected_end if bar.kind is BarKind.EXPECTED else None)
        if last is None or (bar.count == 1 and last - bar.begin > short_s):
            kept.append(bar)
            continue
        runs = groups.setdefault((bar.kind, bar.owner, bar.agent), [])
        if runs and bar.begin <= runs[-1][0] + short_s:
            runs[-1][1].append(bar)
            runs[-1] = (max(runs[-1][0], last), runs[-1][1])
        else:
            runs.append((last, [bar]))
    return kept + [_one_of(run) for runs in groups.values() for _, run in runs]


def _one_of(run: Sequence[Bar]) -> Bar:
    """One bar in place of these."""
    if len(run) == 1:
        return run[0]
    count, last = sum(bar.count for bar in run), max(_last(bar) for bar in run)
    is_expected = run[0].kind is BarKind.EXPECTED
    return replace(
        run[0],
        label=f"{count} jobs" if run[0].kind is not BarKind.USE else run[0].label,
        end=None if is_expected else last,
        expected_end=last if is_expected else None,
        job=None,
        state=run[0].state if all(bar.state == run[0].state for bar in run) else "ended",
        idle=joined(stretch for bar in run for stretch in bar.idle),
        count=count,
        taken=joined(stretch for bar in run for stretch in bar.stretches),
    )


def _in_lanes(bars: Iterable[Bar]) -> tuple[list[tuple[Bar, int]], int]:
    """Each bar in the first lane that is free then; and the number of lanes, at least 1."""
    free: list[float] = []
    placed = []
    for bar in bars:
        lane = next((i for i, until in enumerate(free) if until <= bar.begin), len(free))
        lane = min(lane, MOST_LANES - 1)
        until = float("inf") if bar.end is None and not bar.expected_end else _last(bar)
        if lane == len(free):
            free.append(until)
        else:
            free[lane] = max(free[lane], until)
        placed.append((bar, lane))
    return placed, max(1, len(free))


def _last(bar: Bar) -> int:
    return bar.end or bar.expected_end or bar.begin


# The week calendar of time windows: a row for each GPU, a cell for each day.


DAYS_SHOWN = 7
# A cell in units of its viewBox: ten for each hour.
HOUR, CELL_WIDE, CELL_HIGH = 10, 240, 24
# A bar of five hours has room for a name, one of three hours for two letters.
LEAST_NAMED, LEAST_MARKED, LEAST_HIGH = 5 * HOUR, 3 * HOUR, 12


class CalendarGpu(Struct, frozen=True):
    uuid: str
    name: str


class WindowBar(Struct, frozen=True):
    """A window in a cell. times: clock times; utc: the same in UTC, "" if they are the same.

    clashes: cannot be approved as requested.
    """

    holder: str
    times: str
    utc: str
    x: float
    width: float
    kept: bool
    pending: bool
    clashes: bool
    y: float = 0.0
    height: float = CELL_HIGH

    @property
    def left_pct(self) -> float:
        """Where it begins in its cell."""
        return round(100 * self.x / CELL_WIDE, 1)

    @property
    def width_pct(self) -> float:
        return round(100 * self.width / CELL_WIDE, 1)

    @property
    def room(self) -> str:
        """For the "name" of the holder, its "mark", or "" = neither."""
        if self.height < LEAST_HIGH or self.width < LEAST_MARKED:
            return ""
        return "name" if self.width >= LEAST_NAMED else "mark"

    @property
    def words(self) -> str:
        state = " (pending)" if self.pending else ""
        return f"{self.holder} {self.times}{state}"

    @property
    def title(self) -> str:
        return f"{self.words} ({self.utc})" if self.utc else self.words


class Cell(Struct, frozen=True):
    """One GPU on one day. title: the label with times in UTC. now: position of the current time."""

    bars: tuple[WindowBar, ...]
    weekday: int
    label: str
    title: str
    now: float | None = None


class CalendarDay(Struct, frozen=True):
    """`weekday`: 0 = Monday."""

    words: str
    weekday: int
    begin: datetime
    end: datetime

    @property
    def utc(self) -> str:
        return f"{self.begin:%Y-%m-%d %H:%M} to {self.end:%Y-%m-%d %H:%M} UTC"


class CalendarRow(Struct, frozen=True):
    gpu: CalendarGpu
    cells: tuple[Cell, ...]


def days(now: datetime, zone: str, week: int = 0) -> list[CalendarDay]:
    """Seven days from today on, in the zone; `week`: the number of weeks after this one."""
    place = ZoneInfo(zone)
    today = now.astimezone(place).date() + timedelta(days=7 * week)
    dates = [today + timedelta(days=n) for n in range(DAYS_SHOWN + 1)]
    begins = [datetime.combine(date, time(), place).astimezone(UTC) for date in dates]
    return [
        CalendarDay(f"{date:%a} {date.day}", date.weekday(), begins[n], begins[n + 1])
        for n, date in enumerate(dates[:-1])
    ]


def calendar_rows(
    gpus: Sequence[CalendarGpu],
    windows: Sequence[tuple[Window, bool]],
    clashing: Collection[int],
    shown: Sequence[CalendarDay],
    zone: str,
    now: datetime,
) -> list[CalendarRow]:
    """`windows`: each with whether it is pending. `clashing`: ids of those with conflicts."""
    place = ZoneInfo(zone)
    by_window = [
        (window, _by_day(window, pending, window.id in clashing, shown, place))
        for window, pending in windows
    ]
    made = []
    for gpu in gpus:
        theirs = [bars for window, bars in by_window if about(gpu.uuid, [window])]
        cells = (
            _cell(gpu, day, [bar for bars in theirs for bar in bars[number]], place, now)
            for number, day in enumerate(shown)
        )
        made.append(CalendarRow(gpu, tuple(cells)))
    return made


def _by_day(
    window: Window, pending: bool, clashes: bool, shown: Sequence[CalendarDay], place: ZoneInfo
) -> list[list[WindowBar]]:
    """The bars of a window on each day."""
    by_day: list[list[WindowBar]] = [[] for _ in shown]
    for span in spans(window, shown[0].begin, shown[-1].end):
        for number, day in enumerate(shown):
            begin, end = max(span.start, day.begin), min(span.end, day.end)
            if begin >= end:
                continue
            x = _x(begin, place)
            right = CELL_WIDE if end == day.end else _x(end, place)
            by_day[number].append(
                WindowBar(
                    holder=window.holder,
                    times=clock_times(begin, end, place),
                    utc=times_in_utc(begin, end, place),
                    x=x,
                    width=round(max(2.0, right - x), 1),
                    kept=window.kept,
                    pending=pending,
                    clashes=clashes,
                )
            )
    return by_day


def clock_times(begin: datetime, end: datetime, place: ZoneInfo) -> str:
    """A span of at most a day in this zone: "09:00–17:00"."""
    here = [at.astimezone(place) for at in (begin, end)]
    ends_at_midnight = here[1].time() == time() and end > begin
    return f"{here[0]:%H:%M}–{'24:00' if ends_at_midnight else format(here[1], '%H:%M')}"


def times_in_utc(begin: datetime, end: datetime, place: ZoneInfo) -> str:
    """Such as "08:00–16:00 UTC", with weekdays that differ from the first one here.

    "" where the zone has the same time.
    """
    if not any(at.astimezone(place).utcoffset() for at in (begin, end)):
        return ""
    day = begin.astimezone(place).date()
    utc = (at.astimezone(UTC) for at in (begin, end))
    words = (f"{at:%H:%M}" if at.date() == day else f"{at:%a %H:%M}" for at in utc)
    return f"{'–'.join(words)} UTC"


def _x(at: datetime, place: ZoneInfo) -> float:
    local = at.astimezone(place)
    return round(HOUR * (local.hour + local.minute / 60), 1)


def _cell(
    gpu: CalendarGpu, day: CalendarDay, bars: list[WindowBar], place: ZoneInfo, now: datetime
) -> Cell:
    in_order = sorted(bars, key=lambda bar: bar.x)
    of_day, request = f"{gpu.name}, {day.words}: ", ". Request a time window"
    return Cell(
        bars=tuple(_windows_in_lanes(bars)),
        weekday=day.weekday,
        label=of_day + (", ".join(bar.words for bar in in_order) or "free") + request,
        title=of_day + (", ".join(bar.title for bar in in_order) or "free") + request,
        now=_x(now, place) if day.begin <= now < day.end else None,
    )


def _windows_in_lanes(bars: Iterable[WindowBar]) -> list[WindowBar]:
    """Bars at the same time are drawn above each other."""
    ends: list[float] = []
    placed: list[tuple[WindowBar, int]] = []
    for bar in sorted(bars, key=lambda bar: (bar.x, bar.pending)):
        lane = next((n for n, end in enumerate(ends) if end <= bar.x), len(ends))
        ends[lane : lane + 1] = [bar.x + bar.width]
        placed.append((bar, lane))
    height = round(CELL_HIGH / max(1, len(ends)), 1)
    return [replace(bar, y=lane * height, height=height) for bar, lane in placed]
