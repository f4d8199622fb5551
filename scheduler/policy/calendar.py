"""Policy: when agreed weekly times are, in their own zone, also when clocks change."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from itertools import groupby
from zoneinfo import ZoneInfo

from scheduler.people import Window

DAY = timedelta(days=1)
DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")


@dataclass(frozen=True, slots=True)
class Span:
    """One occurrence of a window."""

    start: datetime
    end: datetime


def spans(window: Window, since: datetime, until: datetime) -> Iterator[Span]:
    """Its occurrences that touch since..until, in order. One is never longer than a week."""
    zone = ZoneInfo(window.zone)
    day = since.astimezone(zone).date() - DAY
    while (found := _span(window, day, zone)) is None or found.start < until:
        if found is not None and found.end > since:
            yield found
        day += DAY
        if day > until.astimezone(zone).date():
            return


def _span(window: Window, day: date, zone: ZoneInfo) -> Span | None:
    """What begins on that day of its zone."""
    if day.weekday() not in window.days or not _is_valid(window, day):
        return None
    last = day if window.end > window.start else day + DAY
    start = datetime.combine(day, window.start, zone)
    end = datetime.combine(last, window.end, zone)
    # To UTC and back: arithmetic inside a zone forgets that clocks change.
    return Span(*(at.astimezone(UTC) for at in (start, end)))


def _is_valid(window: Window, day: date) -> bool:
    begins, ends = window.first_day, window.last_day
    return (begins is None or day >= begins) and (ends is None or day <= ends)


@lru_cache(maxsize=4096)
def current(window: Window, now: datetime) -> Span | None:
    """The occurrence that goes on at `now`, joined with those that follow without a gap."""
    found: Span | None = None
    for span in spans(window, now, now + 8 * DAY):
        if found is None and span.start <= now:
            found = span
        elif found is not None and span.start <= found.end:
            found = Span(found.start, max(found.end, span.end))
        elif found is not None or span.start > now:
            break
    return found


@lru_cache(maxsize=4096)
def coming(window: Window, now: datetime) -> Span | None:
    """The next occurrence that has not begun."""
    return next((s for s in spans(window, now, now + 9 * DAY) if s.start > now), None)


def clashes(window: Window, others: Iterable[Window], now: datetime) -> list[Window]:
    """Windows that would keep more than all of a GPU at some moment of a week together with it."""
    if not window.kept:
        return []
    mine = list(spans(window, now, now + 8 * DAY))
    return [
        other
        for other in others
        if other.kept
        and other.id != window.id
        and other.share_pct + window.share_pct > 100
        and (not window.gpu_uuids or not other.gpu_uuids or _meet(window, other))
        and any(
            a.start < b.end and b.start < a.end
            for a in mine
            for b in spans(other, now, now + 8 * DAY)
        )
    ]


def _meet(one: Window, other: Window) -> bool:
    return bool(set(one.gpu_uuids) & set(other.gpu_uuids))


def describe(window: Window) -> str:
    """Its days and hours in words: "Mon–Fri 20:00–06:00 (Europe/Berlin)"."""
    return f"{days(window.days)} {window.start:%H:%M}–{window.end:%H:%M} ({window.zone})"


def days(numbers: Sequence[int]) -> str:
    """Days in words, runs of three and more as a range: "Mon–Fri", "Sat, Sun", "every day"."""
    if len(set(numbers)) == len(DAYS):
        return "every day"
    runs = [
        [day for _, day in run]
        for _, run in groupby(enumerate(sorted(set(numbers))), key=lambda pair: pair[1] - pair[0])
    ]
    words = []
    for run in runs:
        names = [DAYS[day] for day in run]
        words.append(f"{names[0]}–{names[-1]}" if len(run) > 2 else ", ".join(names))
    return ", ".join(words)


def moment(at: datetime, zone: str) -> str:
    """An instant for a sentence, with its day and zone: it reads the same at any time."""
    here = at.astimezone(ZoneInfo(zone))
    return f"{here:%a} {here.day} {here:%b %H:%M} ({zone})"
