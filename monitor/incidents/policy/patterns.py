"""Recurring use: at which hours, on which days, a user takes most of a GPU.

Hours are local clock hours. In the night in which clocks are set back, the repeated hour counts
once. The hour that is skipped in spring is not counted as a missed chance.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, tzinfo

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


@dataclass(frozen=True, slots=True, kw_only=True)
class PatternPolicy:
    """Recurring use: which hours and days count as a pattern."""

    # fmt: off
    enabled: bool = threshold(True, "Detect usage patterns")
    busy_pct: float = threshold(60.0, "Busy hour above", unit="%", ge=1, le=100,
        help="Mean GPU use of a user in one hour.")
    sure_pct: float = threshold(75.0, "Minimum frequency", unit="%", ge=50, le=100,
        help="Share of the observed days on which the pattern occurred.")
    least_times: int = threshold(4, "Minimum occurrences", ge=2, le=50,
        help="Number of days on which the pattern occurred.")
    least_hours: int = threshold(2, "Minimum duration", unit="h", ge=1, le=24,
        help="Length of the busy period.")
    # fmt: on


@dataclass(frozen=True, slots=True)
class Subject:
    """A user's program on a GPU."""

    gpu_uuid: str
    user: str
    program: str


@dataclass(frozen=True, slots=True)
class UsagePattern:
    """Use from hour `start` to hour `end` on these weekdays; `end` ≤ `start` means the next day.

    hits of chances: number of occurrences among the watched times. mean_pct: mean use while it
    occurred.
    """

    subject: Subject
    days: tuple[int, ...]
    start: int
    end: int
    hits: int
    chances: int
    mean_pct: float


# (day, hour of the wall clock)
Cell = tuple[date, int]
# -> percent of the GPU
Cells = Mapping[Cell, float]
Days = Mapping[tuple[tuple[int, ...], int], Sequence[date]]
# Minimum parts of the hours of a pattern that are watched, and busy.
MOST = 0.75


def find(
    used: Mapping[Subject, Mapping[int, float]],
    watched: Iterable[int],
    zone: tzinfo,
    now: datetime,
    policy: PatternPolicy,
) -> list[UsagePattern]:
    """Patterns in `used`: {subject: {begin of an hour: percent}}; `watched`: hours with readings.

    Hours are epoch seconds. The most certain and longest first.
    """
    if not policy.enabled:
        return []
    time = WatchedTime.of(watched, zone, now)
    return in_order(
        pattern
        for subject, hours in used.items()
        for pattern in of_subject(subject, hours, time, policy)
    )


@dataclass(frozen=True, slots=True)
class WatchedTime:
    """The hours with readings, by the wall clock of `zone`. days: by kind of day and hour."""

    zone: tzinfo
    cells: frozenset[Cell]
    days: Days

    @classmethod
    def of(cls, watched: Iterable[int], zone: tzinfo, now: datetime) -> WatchedTime:
        """`watched`: the begins of the hours with readings, in epoch seconds."""
        hours = frozenset(cells(dict.fromkeys(watched, 1.0), zone))
        return cls(zone, hours, _days(hours, now.astimezone(zone).date()))


def of_subject(
    subject: Subject, hours: Mapping[int, float], time: WatchedTime, policy: PatternPolicy
) -> list[UsagePattern]:
    """The patterns of one subject; `used`: {begin of an hour: percent}."""
    return list(_of(subject, cells(hours, time.zone), time.cells, time.days, policy))


def in_order(patterns: Iterable[UsagePattern]) -> list[UsagePattern]:
    """The most certain and longest first."""
    return sorted(
        patterns, key=lambda p: (-p.hits / p.chances, -_length(p), p.subject.user, p.start)
    )


def _days(watched_hours: Collection[Cell], today: date) -> Days:
    """The days on which an hour was watched, by kind of day and hour."""
    by_hour: dict[int, list[date]] = {hour: [] for hour in range(HOURS)}
    for day, hour in sorted(watched_hours):
        by_hour[hour].append(day)
    return {
        (kind, hour): [
            day for day in days if day.weekday() in kind and day >= today - timedelta(weeks=weeks)
        ]
        for kind, weeks in KINDS
        for hour, days in by_hour.items()
    }


def cells(hours: Mapping[int, float], zone: tzinfo) -> dict[Cell, float]:
    """Use by local day and hour. For an hour that occurs twice, the greater value counts."""
    minutes: dict[Cell, float] = {}
    for t, value in hours.items():
        local = datetime.fromtimestamp(t, UTC).astimezone(zone)
        key = (local.date(), local.hour)
        minutes[key] = max(value, minutes.get(key, 0.0))
    return minutes


def _of(
    subject: Subject,
    used: Cells,
    watched_hours: Collection[Cell],
    watched: Days,
    policy: PatternPolicy,
) -> Iterator[UsagePattern]:
    """Patterns of all days come first; times that they explain are not reported for fewer days."""
    busy = {cell for cell, share in used.items() if share >= policy.busy_pct}
    if len(busy) < policy.least_times * policy.least_hours:
        return
    explained: set[tuple[int, int]] = set()
    for kind, _ in KINDS:
        hot = [
            hour
            for hour in range(HOURS)
            if _is_hot(hour, watched[kind, hour], busy, policy)
            and not all((day, hour) in explained for day in kind)
        ]
        for start, end in runs(hot):
            pattern = _counted(
                subject, kind, start, end, watched[kind, start], used, watched_hours, policy
            )
            if pattern is not None:
                yield pattern
                explained |= {(day, hour) for day in kind for hour in _hours(start, end)}


def _is_hot(
    hour: int, chances: Sequence[date], busy: Collection[Cell], policy: PatternPolicy
) -> bool:
    hits = sum((day, hour) in busy for day in chances)
    return hits >= policy.least_times and 100 * hits >= policy.sure_pct * len(chances)


def runs(hot: Collection[int]) -> list[tuple[int, int]]:
    """Runs of consecutive hours, also over midnight: (first hour, hour after the last)."""
    hours = set(hot)
    if len(hours) == HOURS:
        return [(0, 0)]
    firsts = sorted(h for h in hours if (h - 1) % HOURS not in hours)
    run_list = []
    for first in firsts:
        length = next(n for n in range(1, HOURS + 1) if (first + n) % HOURS not in hours)
        run_list.append((first, (first + length) % HOURS))
    return run_list


def _counted(
    subject: Subject,
    kind: tuple[int, ...],
    start: int,
    end: int,
    begins: Sequence[date],
    used: Cells,
    watched_hours: Collection[Cell],
    policy: PatternPolicy,
) -> UsagePattern | None:
    """How often all hours of the run were watched, by the day on which it begins."""
    hours = _hours(start, end)
    # Use around the clock on each day has no time of day.
    if len(hours) < policy.least_hours or len(hours) == HOURS:
        return None
    hits = chances = 0
    shares: list[float] = []
    for day in begins:
        stretch = [(day + timedelta(days=hour < start), hour) for hour in hours]
        watched = [cell for cell in stretch if cell in watched_hours]
        if len(watched) < MOST * len(stretch):
            continue
        chances += 1
        took = [used.get(cell, 0.0) for cell in watched]
        if sum(share >= policy.busy_pct for share in took) >= MOST * len(watched):
            hits += 1
            shares += took
    if hits < policy.least_times or 100 * hits < policy.sure_pct * chances:
        return None
    return UsagePattern(subject, kind, start, end, hits, chances, sum(shares) / len(shares))


def _hours(start: int, end: int) -> list[int]:
    length = (end - start) % HOURS or HOURS
    return [(start + n) % HOURS for n in range(length)]


def _length(pattern: UsagePattern) -> int:
    return len(_hours(pattern.start, pattern.end))


def sentence(pattern: UsagePattern, gpu: str) -> str:
    """Such as "python (alice) monopolises GPU 1 every night 20:00–06:00 (9 of the last 10 …)"."""
    over_midnight = pattern.end <= pattern.start and pattern.end != 0
    single, many, when = _words(pattern, over_midnight or pattern.start >= 20)
    times = f"{pattern.start:02}:00–{pattern.end or 24:02}:00"
    subject = f"{pattern.subject.program or 'a program'} ({pattern.subject.user})"
    unit = many if pattern.chances != 1 else single
    return (
        f"{subject} monopolises {gpu} {when} {times}"
        f" ({pattern.hits} of the last {pattern.chances} {unit})"
    )


def _words(pattern: UsagePattern, at_night: bool) -> tuple[str, str, str]:
    """Words for one occurrence, for several, and for the time of day."""
    if pattern.days == EVERY_DAY:
        return ("night", "nights", "every night") if at_night else ("day", "days", "every day")
    if pattern.days == WORKDAYS:
        return "workday", "workdays", "on workdays"
    if pattern.days == WEEKEND:
        return "day", "days", "at weekends"
    name = NAMES[pattern.days[0]]
    return name, f"{name}s", f"every {name}"
