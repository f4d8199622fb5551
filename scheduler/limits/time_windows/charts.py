"""The week calendar of time windows: a row for each GPU, a cell for each day."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from datetime import UTC, datetime, time, timedelta
from zoneinfo import ZoneInfo

from msgspec import Struct
from msgspec.structs import replace

from scheduler.facts.people import Window
from scheduler.limits.time_windows.policy import about, spans

DAYS_SHOWN = 7
# A cell in units of its viewBox: ten for each hour.
HOUR, CELL_WIDE, CELL_HIGH = 10, 240, 24
# A bar of five hours has room for a name, one of three hours for two letters.
LEAST_NAMED, LEAST_MARKED, LEAST_HIGH = 5 * HOUR, 3 * HOUR, 12


class CalendarGpu(Struct, frozen=True):
    uuid: str
    name: str


class Bar(Struct, frozen=True):
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

    bars: tuple[Bar, ...]
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


def rows(
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
) -> list[list[Bar]]:
    """The bars of a window on each day."""
    by_day: list[list[Bar]] = [[] for _ in shown]
    for span in spans(window, shown[0].begin, shown[-1].end):
        for number, day in enumerate(shown):
            begin, end = max(span.start, day.begin), min(span.end, day.end)
            if begin >= end:
                continue
            x = _x(begin, place)
            right = CELL_WIDE if end == day.end else _x(end, place)
            by_day[number].append(
                Bar(
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
    gpu: CalendarGpu, day: CalendarDay, bars: list[Bar], place: ZoneInfo, now: datetime
) -> Cell:
    in_order = sorted(bars, key=lambda bar: bar.x)
    of_day, request = f"{gpu.name}, {day.words}: ", ". Request a time window"
    return Cell(
        bars=tuple(_in_lanes(bars)),
        weekday=day.weekday,
        label=of_day + (", ".join(bar.words for bar in in_order) or "free") + request,
        title=of_day + (", ".join(bar.title for bar in in_order) or "free") + request,
        now=_x(now, place) if day.begin <= now < day.end else None,
    )


def _in_lanes(bars: Iterable[Bar]) -> list[Bar]:
    """Bars at the same time are drawn above each other."""
    ends: list[float] = []
    placed: list[tuple[Bar, int]] = []
    for bar in sorted(bars, key=lambda bar: (bar.x, bar.pending)):
        lane = next((n for n, end in enumerate(ends) if end <= bar.x), len(ends))
        ends[lane : lane + 1] = [bar.x + bar.width]
        placed.append((bar, lane))
    height = round(CELL_HIGH / max(1, len(ends)), 1)
    return [replace(bar, y=lane * height, height=height) for bar, lane in placed]
