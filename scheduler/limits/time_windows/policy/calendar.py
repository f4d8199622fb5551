"""Policy: the occurrences of weekly time windows in their own zone, with clock changes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache
from itertools import groupby
from zoneinfo import ZoneInfo

from monitor.facts.formats import first_few
from scheduler.facts.people import Window

DAY = timedelta(days=1)
# A period with two clock changes.
SEASONS = timedelta(days=400)
SHORT = timedelta(days=31)
DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")


@dataclass(frozen=True, slots=True)
class Span:
    """One occurrence of a window."""

    start: datetime
    end: datetime


def spans(window: Window, since: datetime, until: datetime) -> Iterator[Span]:
    """The occurrences that overlap since..until, in order. Each lasts at most a week."""
    zone = ZoneInfo(window.zone)
    day = since.astimezone(zone).date() - DAY
    while (span := _span(window, day, zone)) is None or span.start < until:
        if span is not None and span.end > since:
            yield span
        day += DAY
        if day > until.astimezone(zone).date():
            return


def _span(window: Window, day: date, zone: ZoneInfo) -> Span | None:
    """The occurrence that begins on that day of the zone; None = there is none."""
    if day.weekday() not in window.days or not _is_valid(window, day):
        return None
    last = day if window.end > window.start else day + DAY
    start = datetime.combine(day, window.start, zone)
    end = datetime.combine(last, window.end, zone)
    # Convert to UTC and back, because arithmetic inside a zone ignores clock changes.
    begins, ends = (at.astimezone(UTC) for at in (start, end))
    # A start and an end within the skipped hour leave an empty span.
    return Span(begins, ends) if begins < ends else None


def skipped_time(window: Window, now: datetime) -> datetime | None:
    """A start or end that does not exist because clocks go forward; None: there is none.

    It counts where an occurrence has no time left because of it, within SEASONS. It counts at each
    occurrence of a window of at most SHORT days; a longer one begins or ends later on that day.
    """
    zone = ZoneInfo(window.zone)
    first = max(now.astimezone(zone).date() - DAY, window.first_day or date.min)
    last = min(window.last_day or date.max, first + SEASONS)
    is_short = last - first < SHORT
    for offset in range((last - first).days + 1):
        day = first + offset * DAY
        if day.weekday() not in window.days:
            continue
        for at in _skipped(window, day, zone):
            if is_short or _span(window, day, zone) is None:
                return at
    return None


def _skipped(window: Window, day: date, zone: ZoneInfo) -> Iterator[datetime]:
    last = day if window.end > window.start else day + DAY
    for at in (datetime.combine(day, window.start), datetime.combine(last, window.end)):
        local = at.replace(tzinfo=zone)
        if local.astimezone(UTC).astimezone(zone).replace(tzinfo=None) != at:
            yield local


def _is_valid(window: Window, day: date) -> bool:
    begins, ends = window.first_day, window.last_day
    return (begins is None or day >= begins) and (ends is None or day <= ends)


@lru_cache(maxsize=4096)
def current(window: Window, now: datetime) -> Span | None:
    """The current occurrence, joined with those that follow without a gap."""
    joined: Span | None = None
    for span in spans(window, now, now + 8 * DAY):
        if joined is None and span.start <= now:
            joined = span
        elif joined is not None and span.start <= joined.end:
            joined = Span(joined.start, max(joined.end, span.end))
        elif joined is not None or span.start > now:
            break
    return joined


@lru_cache(maxsize=4096)
def coming(window: Window, now: datetime) -> Span | None:
    """The next occurrence that has not begun. It can be far away if the first day is."""
    since = _begins(window, now)
    return next((s for s in spans(window, since, since + 9 * DAY) if s.start > now), None)


def ends(windows: Sequence[Window], now: datetime, reach: datetime) -> tuple[datetime, str] | None:
    """The end of one holder's current windows and of those that follow without a gap; its zone.

    Ends beyond `reach` are not computed. None = no window is current.
    """
    latest, at = None, now
    while at <= reach:
        going = [(span.end, w.zone) for w in windows if (span := current(w, at)) is not None]
        if not going:
            break
        latest = max(going)
        at = latest[0]
    return latest


def clashes(window: Window, others: Iterable[Window], now: datetime) -> list[Window]:
    """The windows that, together with this one, would reserve more than a whole GPU at some time.

    All weeks are alike, so only the weeks in which a window begins to count are checked.
    """
    if not window.kept:
        return []
    rivals = [o for o in others if o.kept and o.id != window.id]
    gpus = {"", *window.gpu_uuids, *(gpu for rival in rivals for gpu in rival.gpu_uuids)}
    weeks = {_begins(other, now) for other in (window, *rivals)}
    clashing: dict[int, Window] = {}
    for gpu in gpus:
        same_gpu = [
            other for other in (window, *rivals) if not other.gpu_uuids or gpu in other.gpu_uuids
        ]
        for since in weeks if window in same_gpu else ():
            clashing |= {other.id: other for other in _too_many(window, same_gpu, since)}
    return [rival for rival in rivals if rival.id in clashing]


def _begins(window: Window, now: datetime) -> datetime:
    """The later of now and the first day of the window."""
    if window.first_day is None:
        return now
    first = datetime.combine(window.first_day, time(), ZoneInfo(window.zone))
    return max(now, first.astimezone(UTC))


def _too_many(window: Window, others: Sequence[Window], since: datetime) -> Iterator[Window]:
    """The windows active at the same time in that week, if they exceed a whole GPU together."""
    times = [(other, list(spans(other, since, since + 8 * DAY))) for other in others]
    for at in {max(span.start, since) for _, its_spans in times for span in its_spans}:
        active = [
            other for other, its_spans in times if any(s.start <= at < s.end for s in its_spans)
        ]
        if window in active and sum(other.share_pct for other in active) > 100:
            yield from (other for other in active if other is not window)


@lru_cache(maxsize=1024)
def describe(window: Window) -> str:
    """The days and hours in words: "Mon–Fri 20:00–06:00 (Europe/Berlin)"."""
    return f"{days(window.days)} {window.start:%H:%M}–{window.end:%H:%M} ({window.zone})"


def named(windows: Sequence[Window]) -> str:
    """The first few windows with their holders, in words."""
    return first_few([f"{each.holder}, {describe(each)}" for each in windows], separator="; ")


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
    local = at.astimezone(ZoneInfo(zone))
    return f"{local:%a} {local.day} {local:%b %H:%M} ({zone})"
