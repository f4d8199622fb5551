"""What comes again: at which times of day, on which days, a person takes most of a GPU.

Hours are those of clocks on the wall. In the night in which clocks are set back one hour comes
twice and counts once; the hour that is skipped in spring is no chance missed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta, tzinfo
from typing import Any

HOURS = 24
EVERY_DAY = (0, 1, 2, 3, 4, 5, 6)
WORKDAYS, WEEKEND = (0, 1, 2, 3, 4), (5, 6)
NAMES = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
# Which days may have a pattern of their own, and how far one looks back: weeks.
KINDS: tuple[tuple[tuple[int, ...], int], ...] = (
    (EVERY_DAY, 2),
    (WORKDAYS, 3),
    (WEEKEND, 6),
    *(((day,), 8) for day in EVERY_DAY),
)
LOOK_BACK = timedelta(weeks=8)


def _meta(label: str, help_: str, **more: Any) -> dict[str, Any]:
    return {"label": label, "help": help_, **more}


@dataclass(frozen=True, slots=True, kw_only=True)
class PatternPolicy:
    """What counts as coming again and again."""

    enabled: bool = field(default=True, metadata=_meta("Look for patterns", ""))
    busy_pct: float = field(
        default=60.0,
        metadata=_meta("A busy hour", "Above so much of a GPU.", unit="%", least=1, most=100),
    )
    sure_pct: float = field(
        default=75.0,
        metadata=_meta("Seen in", "Of all days that were watched.", unit="%", least=50, most=100),
    )
    least_times: int = field(default=4, metadata=_meta("Seen at least", "Times.", least=2, most=50))
    least_hours: int = field(
        default=2, metadata=_meta("Lasts at least", "", unit="h", least=1, most=24)
    )


@dataclass(frozen=True, slots=True)
class Subject:
    """Whose use of which GPU."""

    gpu_uuid: str
    user: str
    program: str


@dataclass(frozen=True, slots=True)
class Found:
    """From hour `start` to hour `end` (the next day when that is not later) on these weekdays.

    hits of chances: so often of the times that were watched. mean_pct: while it was seen.
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
# So much of a stretch has to be watched, and busy.
MOST = 0.75


def find(
    used: Mapping[Subject, Mapping[int, float]],
    watched: Iterable[int],
    zone: tzinfo,
    now: datetime,
    policy: PatternPolicy,
) -> list[Found]:
    """Patterns in `used`: {subject: {begin of an hour: percent}}; `watched`: hours with readings.

    Hours are epoch seconds. The most certain and longest first.
    """
    if not policy.enabled:
        return []
    seen = frozenset(cells(dict.fromkeys(watched, 1.0), zone))
    days = _days(seen, now.astimezone(zone).date())
    found = [
        pattern
        for subject, hours in used.items()
        for pattern in _of(subject, cells(hours, zone), seen, days, policy)
    ]
    return sorted(found, key=lambda p: (-p.hits / p.chances, -_length(p), p.subject.user, p.start))


def _days(seen: Collection[Cell], today: date) -> Days:
    """The days on which an hour was watched, by kind of day and hour."""
    by_hour: dict[int, list[date]] = {hour: [] for hour in range(HOURS)}
    for day, hour in sorted(seen):
        by_hour[hour].append(day)
    return {
        (kind, hour): [
            day for day in days if day.weekday() in kind and day >= today - timedelta(weeks=weeks)
        ]
        for kind, weeks in KINDS
        for hour, days in by_hour.items()
    }


def cells(hours: Mapping[int, float], zone: tzinfo) -> dict[Cell, float]:
    """By the clock on the wall; of an hour that comes twice the greater."""
    found: dict[Cell, float] = {}
    for t, value in hours.items():
        local = datetime.fromtimestamp(t, UTC).astimezone(zone)
        key = (local.date(), local.hour)
        found[key] = max(value, found.get(key, 0.0))
    return found


def _of(
    subject: Subject, used: Cells, seen: Collection[Cell], watched: Days, policy: PatternPolicy
) -> Iterator[Found]:
    """Of all days first; what these explain is not told again of fewer days."""
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
            pattern = _counted(subject, kind, start, end, watched[kind, start], used, seen, policy)
            if pattern is not None:
                yield pattern
                explained |= {(day, hour) for day in kind for hour in _hours(start, end)}


def _is_hot(
    hour: int, chances: Sequence[date], busy: Collection[Cell], policy: PatternPolicy
) -> bool:
    hits = sum((day, hour) in busy for day in chances)
    return hits >= policy.least_times and 100 * hits >= policy.sure_pct * len(chances)


def runs(hot: Collection[int]) -> list[tuple[int, int]]:
    """Hours that follow each other, over midnight too: (first, the one after the last)."""
    hours = set(hot)
    if len(hours) == HOURS:
        return [(0, 0)]
    firsts = sorted(h for h in hours if (h - 1) % HOURS not in hours)
    found = []
    for first in firsts:
        length = next(n for n in range(1, HOURS + 1) if (first + n) % HOURS not in hours)
        found.append((first, (first + length) % HOURS))
    return found


def _counted(
    subject: Subject,
    kind: tuple[int, ...],
    start: int,
    end: int,
    begins: Sequence[date],
    used: Cells,
    seen: Collection[Cell],
    policy: PatternPolicy,
) -> Found | None:
    """How often the whole stretch was seen, by the day on which it begins."""
    hours = _hours(start, end)
    # All day and night, each day: that is no time of day.
    if len(hours) < policy.least_hours or len(hours) == HOURS:
        return None
    hits = chances = 0
    shares: list[float] = []
    for day in begins:
        stretch = [(day + timedelta(days=hour < start), hour) for hour in hours]
        watched = [cell for cell in stretch if cell in seen]
        if len(watched) < MOST * len(stretch):
            continue
        chances += 1
        took = [used.get(cell, 0.0) for cell in watched]
        if sum(share >= policy.busy_pct for share in took) >= MOST * len(watched):
            hits += 1
            shares += took
    if hits < policy.least_times or 100 * hits < policy.sure_pct * chances:
        return None
    return Found(subject, kind, start, end, hits, chances, sum(shares) / len(shares))


def _hours(start: int, end: int) -> list[int]:
    length = (end - start) % HOURS or HOURS
    return [(start + n) % HOURS for n in range(length)]


def _length(found: Found) -> int:
    return len(_hours(found.start, found.end))


def sentence(found: Found, gpu: str) -> str:
    """Such as "python (alice) monopolises GPU 1 every night 20:00–06:00 (9 of the last 10 …)"."""
    over_midnight = found.end <= found.start and found.end != 0
    one, many, when = _words(found, over_midnight or found.start >= 20)
    times = f"{found.start:02}:00–{found.end or 24:02}:00"
    who = f"{found.subject.program or 'a program'} ({found.subject.user})"
    return (
        f"{who} monopolises {gpu} {when} {times}"
        f" ({found.hits} of the last {found.chances} {many if found.chances != 1 else one})"
    )


def _words(found: Found, at_night: bool) -> tuple[str, str, str]:
    """One of it, many of it, and when."""
    if found.days == EVERY_DAY:
        return ("night", "nights", "every night") if at_night else ("day", "days", "every day")
    if found.days == WORKDAYS:
        return "workday", "workdays", "on workdays"
    if found.days == WEEKEND:
        return "day", "days", "at weekends"
    name = NAMES[found.days[0]]
    return name, f"{name}s", f"every {name}"
