"""Recurring use: at which hours, on which days, a user takes most of a GPU.

A block of hours is a pattern only if the user is far more often busy in it than at other hours, and
if chance is an implausible reason for that. All GPUs and programs of a user count together.

Hours are local clock hours. In the night in which clocks are set back, the repeated hour counts
once. The hour that is skipped in spring is not counted as a missed chance.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, tzinfo
from math import comb
from statistics import median_low

from msgspec import Struct, field

from monitor.facts.thresholds import threshold

HOURS = 24
EVERY_DAY = (0, 1, 2, 3, 4, 5, 6)
WORKDAYS, WEEKEND = (0, 1, 2, 3, 4), (5, 6)
NAMES = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
# Groups of days that may have a pattern of their own, and the weeks that are searched.
KINDS: tuple[tuple[tuple[int, ...], int], ...] = (
    (EVERY_DAY, 2),
    (WORKDAYS, 3),
    (WEEKEND, 6),
    *(((day,), 8) for day in EVERY_DAY),
)
LOOK_BACK = timedelta(weeks=8)
# Probability that a user without a habit is said to have one.
FALSE_ALARMS = 0.01
# Each hour is searched for each kind of day.
TESTS = len(KINDS) * HOURS
# A pattern's hours are busy at least this many times as often as the user's other hours.
LEAST_LIFT = 2.0
# Beside a busy hour, an hour with this part of the threshold belongs to the same run.
KEEPS = 0.75
# An hour is busy above this mean use of a user in %; 100 % = all of one GPU.
BUSY_PCT = 60.0
# A pattern occurred on this part of the observed days in %, on this many days, for this many hours.
SURE_PCT, LEAST_TIMES, LEAST_HOURS = 75.0, 4, 2
# Minimum part of the hours of a pattern that is watched.
MOST = 0.75
# Blocks of several days with this part of their hours in common are one pattern.
SAME = 0.7
# GPUs and programs with less than this part of the use are not named.
LEAST_PART = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class PatternPolicy:
    """Recurring use: which hours and days count as a pattern."""

    # fmt: off
    enabled: bool = threshold(True, "Detect usage patterns")
    # fmt: on


class Place(Struct, frozen=True):
    """A program on a GPU."""

    gpu_uuid: str
    program: str


# {begin of an hour (epoch seconds): {place: percent of the GPU}}
HourlyUse = Mapping[int, Mapping[Place, float]]


class UsagePattern(Struct, frozen=True, kw_only=True):
    """Use from hour `start` to hour `end`; `end` ≤ `start` means the next day.

    days: weekdays on which it begins, 0 = Monday. hits of chances: number of occurrences among the
    watched times. mean_pct: mean use while it occurred, 100 = all of one GPU. gpu_uuids, programs:
    the most used first.
    """

    user: str
    days: tuple[int, ...]
    start: int
    end: int
    hits: int
    chances: int
    mean_pct: float
    gpu_uuids: tuple[str, ...]
    programs: tuple[str, ...]


# (day, hour of the wall clock)
Cell = tuple[date, int]
# Numbers of days by hour and weekday.
DayCounts = Sequence[Sequence[int]]


def find(
    used: Mapping[str, HourlyUse],
    watched: Iterable[int],
    zone: tzinfo,
    now: datetime,
) -> list[UsagePattern]:
    """Patterns in `used`, by user; `watched`: the begins of the hours with readings.

    Hours are epoch seconds. The most certain and longest first.
    """
    time = WatchedTime.of(watched, zone, now)
    return in_order(
        pattern for user, hours in used.items() for pattern in of_user(user, hours, time)
    )


class WatchedTime(Struct, frozen=True):
    """The hours with readings, by the wall clock of `zone`."""

    zone: tzinfo
    today: date
    cells: frozenset[Cell]
    _days: dict[tuple[int, int], list[list[date]]] = field(default_factory=dict)
    _counts: dict[tuple[int, int], DayCounts] = field(default_factory=dict)

    @classmethod
    def of(cls, watched: Iterable[int], zone: tzinfo, now: datetime) -> WatchedTime:
        """`watched`: the begins of the hours with readings, in epoch seconds."""
        hours = frozenset(_cell(t, zone) for t in watched)
        return cls(zone, now.astimezone(zone).date(), hours)

    def since(self, weeks: int) -> date:
        return self.today - timedelta(weeks=weeks)

    def days(self, cut: int, weeks: int) -> list[list[date]]:
        """By hour: the days of the last weeks with readings. Days and hours begin at `cut`."""
        if (cut, weeks) not in self._days:
            since = self.since(weeks)
            by_hour: list[list[date]] = [[] for _ in range(HOURS)]
            for cell in self.cells:
                day, hour = _in_day(cell, cut)
                if day >= since:
                    by_hour[hour].append(day)
            for days in by_hour:
                days.sort()
            self._days[cut, weeks] = by_hour
        return self._days[cut, weeks]

    def counts(self, cut: int, weeks: int) -> DayCounts:
        """By hour and weekday: the number of these days."""
        if (cut, weeks) not in self._counts:
            by_hour = enumerate(self.days(cut, weeks))
            cells = ((day, hour) for hour, days in by_hour for day in days)
            self._counts[cut, weeks] = _counts(cells)
        return self._counts[cut, weeks]


def _counts(cells: Iterable[Cell]) -> DayCounts:
    counts = [[0] * len(NAMES) for _ in range(HOURS)]
    for day, hour in cells:
        counts[hour][day.weekday()] += 1
    return counts


def in_order(patterns: Iterable[UsagePattern]) -> list[UsagePattern]:
    """The most certain and longest first."""
    return sorted(
        patterns, key=lambda p: (-p.hits / p.chances, -_length(p.start, p.end), p.user, p.start)
    )


def of_user(user: str, hours: HourlyUse, time: WatchedTime) -> list[UsagePattern]:
    """The patterns of one user.

    Patterns of all days come first; hours that they explain are not reported for fewer days.
    Blocks of single days with about the same hours are one pattern.
    """
    calendar = _Calendar.of(hours, time)
    if len(calendar.runs) < LEAST_TIMES * LEAST_HOURS:
        return []
    explained: set[tuple[int, int]] = set()
    blocks: list[_Block] = []
    for kind, weeks in KINDS:
        for block in _blocks(calendar, kind, weeks, explained):
            blocks.append(block)
            explained |= {(day, hour) for day in block.days for hour in block.hours}
    return [_pattern(user, block, hours, calendar) for block in _joined(blocks, calendar)]


def _cell(t: int, zone: tzinfo) -> Cell:
    local = datetime.fromtimestamp(t, UTC).astimezone(zone)
    return local.date(), local.hour


class _Block(Struct, frozen=True):
    """Consecutive hours of some weekdays. Hours are counted from the begin of the user's day."""

    days: tuple[int, ...]
    weeks: int
    first: int
    last: int
    hits: tuple[date, ...] = ()
    chances: int = 0

    @property
    def hours(self) -> range:
        return range(self.first, self.last + 1)

    def overlap(self, other: _Block) -> float:
        """The common part (0..1) of the hours of both."""
        common = min(self.last, other.last) - max(self.first, other.first) + 1
        return common / max(len(self.hours), len(other.hours))


class _Calendar(Struct, frozen=True):
    """The user's watched hours in days that begin at `cut`, so that a night belongs to one day.

    used: percent, where there is use. runs: the number of the run of each busy hour.
    """

    cut: int
    time: WatchedTime
    used: Mapping[Cell, float]
    runs: Mapping[Cell, int]

    @classmethod
    def of(cls, hours: HourlyUse, time: WatchedTime) -> _Calendar:
        """For an hour that occurs twice, the greater value counts."""
        used: dict[Cell, float] = {}
        for t, places in hours.items():
            cell = _cell(t, time.zone)
            if cell in time.cells:
                used[cell] = max(sum(places.values()), used.get(cell, 0.0))
        runs = _runs(used, BUSY_PCT)
        cut = _cut(runs)
        return cls(
            cut,
            time,
            {_in_day(cell, cut): pct for cell, pct in used.items()},
            {_in_day(cell, cut): run for cell, run in runs.items()},
        )

    def is_late(self, block: _Block) -> bool:
        """Whether the block begins after the midnight in the user's day."""
        return block.first + self.cut >= HOURS


def _runs(used: Mapping[Cell, float], busy_pct: float) -> dict[Cell, int]:
    """{busy hour: number of its run of consecutive hours}.

    A run has at least one hour above the threshold and goes on while hours are near to it, so use
    close to the threshold does not break it into pieces.
    """
    runs: dict[Cell, int] = {}
    run: list[Cell] = []
    number = 0
    for cell in [*sorted(cell for cell, pct in used.items() if pct >= KEEPS * busy_pct), None]:
        if cell is None or (run and cell != _next(run[-1])):
            if any(used[hour] >= busy_pct for hour in run):
                runs |= dict.fromkeys(run, number)
                number += 1
            run = []
        if cell is not None:
            run.append(cell)
    return runs


def _next(cell: Cell) -> Cell:
    day, hour = cell
    return (day, hour + 1) if hour + 1 < HOURS else (day + timedelta(days=1), 0)


def _cut(runs: Mapping[Cell, int]) -> int:
    """The hour at which the fewest of the user's runs go on: there, the user's day begins.

    Of several, the middle of the longest stretch.
    """
    cut_runs = Counter(
        hour for day, hour in runs if runs.get(_before((day, hour))) == runs[day, hour]
    )
    least = min(cut_runs.get(hour, 0) for hour in range(HOURS))
    quiet = {hour for hour in range(HOURS) if cut_runs.get(hour, 0) == least}
    if len(quiet) == HOURS:
        return 0
    stretches = [
        (next(n for n in range(1, HOURS + 1) if (first + n) % HOURS not in quiet), -first)
        for first in quiet
        if (first - 1) % HOURS not in quiet
    ]
    length, first = max(stretches)
    return (-first + length // 2) % HOURS


def _before(cell: Cell) -> Cell:
    day, hour = cell
    return (day, hour - 1) if hour else (day - timedelta(days=1), HOURS - 1)


def _in_day(cell: Cell, cut: int) -> Cell:
    """The same hour in a day that begins at `cut`."""
    day, hour = cell
    return (day, hour - cut) if hour >= cut else (day - timedelta(days=1), hour + HOURS - cut)


def _blocks(
    calendar: _Calendar,
    kind: tuple[int, ...],
    weeks: int,
    explained: Collection[tuple[int, int]],
) -> Iterator[_Block]:
    """The blocks of hours that are a pattern of these days of the calendar.

    A block that begins between midnight and `cut` belongs to the user's day that began before.
    """
    since = calendar.time.since(weeks)
    hits = _counts(cell for cell in calendar.runs if cell[0] >= since)
    chances = calendar.time.counts(calendar.cut, weeks)
    for late in (0, 1):
        days = tuple((day - late) % len(NAMES) for day in kind)
        hot = [
            hour
            for hour in range(HOURS)
            if _is_often(
                sum(hits[hour][day] for day in days),
                sum(chances[hour][day] for day in days),
            )
            and not all((day, hour) in explained for day in days)
        ]
        for first in (hour for hour in hot if hour - 1 not in hot):
            last = next(hour for hour in range(first, HOURS) if hour + 1 not in hot)
            block = _Block(days, weeks, first, last)
            if calendar.is_late(block) == bool(late) and (counted := _counted(block, calendar)):
                yield counted


def _is_often(hits: int, chances: int) -> bool:
    return hits >= LEAST_TIMES and 100 * hits >= SURE_PCT * chances


def _counted(block: _Block, calendar: _Calendar) -> _Block | None:
    """The block with its hits, if it is a pattern; else None."""
    # Use around the clock has no time of day.
    if not LEAST_HOURS <= len(block.hours) < HOURS:
        return None
    days = calendar.time.days(calendar.cut, block.weeks)
    watched = Counter(day for hour in block.hours for day in days[hour])
    hits: list[date] = []
    missed: list[date] = []
    for day in days[block.first]:
        if day.weekday() not in block.days or watched[day] < MOST * len(block.hours):
            continue
        pct = sum(calendar.used.get((day, hour), 0.0) for hour in block.hours) / watched[day]
        (hits if pct >= BUSY_PCT else missed).append(day)
    chances = len(hits) + len(missed)
    if not _is_often(len(hits), chances):
        return None
    by_day, misses = Counter(day.weekday() for day in hits), Counter(d.weekday() for d in missed)
    if any(misses[day] >= 2 and not by_day[day] for day in block.days):
        return None
    if not _is_significant(block, hits, chances, calendar):
        return None
    return _Block(block.days, block.weeks, block.first, block.last, tuple(hits), chances)


def _is_significant(block: _Block, hits: Sequence[date], chances: int, calendar: _Calendar) -> bool:
    """Whether the user is busy in the block more often than at other hours, and not by chance.

    One-sided exact binomial test (Clopper and Pearson 1934) of the hits against the part of the
    user's other hours that is busy, with the Bonferroni correction (Dunn 1961) for the number of
    tests. That part is estimated by Laplace's rule of succession. Hits in one uninterrupted run
    are not independent, so they count once.
    """
    since = calendar.time.since(block.weeks)
    counts = calendar.time.counts(calendar.cut, block.weeks)
    inside = sum(counts[hour][day] for hour in block.hours for day in block.days)
    others = sum(map(sum, counts)) - inside
    busy = sum(
        day >= since and not (hour in block.hours and day.weekday() in block.days)
        for day, hour in calendar.runs
    )
    usual = (busy + 1) / (others + 2)
    if len(hits) < LEAST_LIFT * usual * chances:
        return False
    runs = {_run(day, block, calendar) for day in hits}
    tries = chances - len(hits) + len(runs)
    return tail(len(runs), tries, usual) * TESTS <= FALSE_ALARMS


def _run(day: date, block: _Block, calendar: _Calendar) -> int | None:
    """The number of the first run of the block on this day."""
    runs = (calendar.runs.get((day, hour)) for hour in block.hours)
    return next((run for run in runs if run is not None), None)


def tail(hits: int, tries: int, probability: float) -> float:
    """The probability of at least `hits` in `tries` independent tries."""
    return sum(
        comb(tries, n) * probability**n * (1 - probability) ** (tries - n)
        for n in range(hits, tries + 1)
    )


def _joined(blocks: Sequence[_Block], calendar: _Calendar) -> Iterator[_Block]:
    """Blocks of different days with about the same hours as one."""
    left = list(blocks)
    while left:
        first = left.pop(0)
        same = [first, *(b for b in left if b.weeks == first.weeks and b.overlap(first) >= SAME)]
        days = tuple(sorted({day for block in same for day in block.days}))
        joined = _Block(
            days,
            first.weeks,
            median_low(block.first for block in same),
            median_low(block.last for block in same),
        )
        counted = _counted(joined, calendar) if len(same) > 1 else None
        if counted is None:
            yield first
        else:
            yield counted
            left = [block for block in left if block not in same]


def _pattern(user: str, block: _Block, hours: HourlyUse, calendar: _Calendar) -> UsagePattern:
    cells = {(day, hour) for day in block.hits for hour in block.hours}
    by_gpu: dict[str, float] = {}
    by_program: dict[str, float] = {}
    for t, places in hours.items():
        if _in_day(_cell(t, calendar.time.zone), calendar.cut) in cells:
            for place, pct in places.items():
                by_gpu[place.gpu_uuid] = by_gpu.get(place.gpu_uuid, 0.0) + pct
                by_program[place.program] = by_program.get(place.program, 0.0) + pct
    start = (block.first + calendar.cut) % HOURS
    late = int(calendar.is_late(block))
    return UsagePattern(
        user=user,
        days=tuple(sorted((day + late) % len(NAMES) for day in block.days)),
        start=start,
        end=(start + len(block.hours)) % HOURS,
        hits=len(block.hits),
        chances=block.chances,
        mean_pct=sum(calendar.used.get(cell, 0.0) for cell in cells) / len(cells),
        gpu_uuids=_main(by_gpu),
        programs=_main(by_program),
    )


def _main(shares: Mapping[str, float]) -> tuple[str, ...]:
    least = LEAST_PART * sum(shares.values())
    ordered = sorted(shares.items(), key=lambda item: (-item[1], item[0]))
    return tuple(name for name, share in ordered if share >= least)


def _length(start: int, end: int) -> int:
    return (end - start) % HOURS or HOURS


def sentence(pattern: UsagePattern, gpus: str) -> str:
    """Such as "python (alice) monopolises GPU 1 every night 20:00–06:00 (9 of the last 10 …)".

    gpus: the names of the GPUs of the pattern.
    """
    over_midnight = pattern.end <= pattern.start and pattern.end != 0
    single, many, when = _words(pattern, over_midnight or pattern.start >= 20)
    times = f"{pattern.start:02}:00–{pattern.end or 24:02}:00"
    programs = [program or "a program" for program in pattern.programs]
    more = f" and {len(programs) - 1} more" if len(programs) > 1 else ""
    does = f"monopolises {gpus}"
    if len(pattern.gpu_uuids) > 1:
        does = f"uses {gpus} ({pattern.mean_pct:.0f} % of one GPU)"
    unit = many if pattern.chances != 1 else single
    return (
        f"{programs[0]}{more} ({pattern.user}) {does} {when} {times}"
        f" ({pattern.hits} of the last {pattern.chances} {unit})"
    )


def _words(pattern: UsagePattern, at_night: bool) -> tuple[str, str, str]:
    """Words for one occurrence, for several, and for the time of day."""
    day = "night" if at_night else "day"
    if pattern.days == EVERY_DAY:
        return day, f"{day}s", f"every {day}"
    if pattern.days == WORKDAYS:
        return "workday", "workdays", "on workdays"
    if pattern.days == WEEKEND:
        return "day", "days", "at weekends"
    names = [NAMES[weekday] for weekday in _from_gap(pattern.days)]
    if len(names) == 1:
        return names[0], f"{names[0]}s", f"every {names[0]}"
    return day, f"{day}s", f"every {', '.join(names[:-1])} and {names[-1]}"


def _from_gap(days: tuple[int, ...]) -> list[int]:
    """The weekdays in order, from one whose day before is not among them: Sunday to Thursday."""
    first = next((day for day in days if (day - 1) % len(NAMES) not in days), days[0])
    return sorted(days, key=lambda day: (day - first) % len(NAMES))
