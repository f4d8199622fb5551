"""Policy: when agreed weekly times are, in their own zone, also when clocks change."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
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
    """The next occurrence that has not begun; it may be far away, where its first day is."""
    since = _begins(window, now)
    return next((s for s in spans(window, since, since + 9 * DAY) if s.start > now), None)


def ends(windows: Sequence[Window], now: datetime, reach: datetime) -> tuple[datetime, str] | None:
    """When those of one holder that go on are over, with those that follow at once; and its zone.

    Not looked for beyond `reach`. None = none goes on.
    """
    found, at = None, now
    while at <= reach:
        going = [(span.end, w.zone) for w in windows if (span := current(w, at)) is not None]
        if not going:
            break
        found = max(going)
        at = found[0]
    return found


def clashes(window: Window, others: Iterable[Window], now: datetime) -> list[Window]:
    """Windows that would keep more than all of a GPU at some moment together with it.

    Weeks are alike, so one is looked at for each time at which a window begins to count.
    """
    if not window.kept:
        return []
    rivals = [o for o in others if o.kept and o.id != window.id]
    gpus = {"", *window.gpu_uuids, *(gpu for rival in rivals for gpu in rival.gpu_uuids)}
    weeks = {_begins(one, now) for one in (window, *rivals)}
    found: dict[int, Window] = {}
    for gpu in gpus:
        here = [one for one in (window, *rivals) if not one.gpu_uuids or gpu in one.gpu_uuids]
        for since in weeks if window in here else ():
            found |= {one.id: one for one in _too_many(window, here, since)}
    return [rival for rival in rivals if rival.id in found]


def _begins(window: Window, now: datetime) -> datetime:
    """From when on it counts: now, or its first day."""
    if window.first_day is None:
        return now
    first = datetime.combine(window.first_day, time(), ZoneInfo(window.zone))
    return max(now, first.astimezone(UTC))


def _too_many(window: Window, here: Sequence[Window], since: datetime) -> Iterator[Window]:
    """Those that go on together with it at a moment of that week, if they keep more than all."""
    times = [(one, list(spans(one, since, since + 8 * DAY))) for one in here]
    for at in {max(span.start, since) for _, of_one in times for span in of_one}:
        active = [one for one, of_one in times if any(s.start <= at < s.end for s in of_one)]
        if window in active and sum(one.share_pct for one in active) > 100:
            yield from (one for one in active if one is not window)


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
