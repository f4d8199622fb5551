"""Which stretch of time a history page shows, from which rows, in which steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, tzinfo
from enum import StrEnum

HOUR_S, DAY_S = 3600, 86400
# More points than this can't be told apart in a chart.
MOST_POINTS = 400
SHORTEST_S, LONGEST_S = 60, 3 * 366 * DAY_S
# Longer stretches are drawn from hours even where minutes are still there.
MINUTES_UP_TO_S, RAW_UP_TO_S = 3 * DAY_S, 2.5 * HOUR_S


class Source(StrEnum):
    """Which rows: samples of a second, minutes or hours."""

    RAW = "raw"
    MINUTE = "minute"
    HOUR = "hour"


STEPS = {
    Source.RAW: (2, 5, 10, 20, 30, 60),
    Source.MINUTE: (60, 120, 180, 300, 600, 900),
    Source.HOUR: (
        HOUR_S,
        2 * HOUR_S,
        3 * HOUR_S,
        6 * HOUR_S,
        12 * HOUR_S,
        DAY_S,
        2 * DAY_S,
        7 * DAY_S,
    ),
}
# range in the address -> (words, seconds)
RANGES: dict[str, tuple[str, int]] = {
    "10min": ("10 min", 600),
    "1h": ("1 h", HOUR_S),
    "24h": ("24 h", DAY_S),
    "7d": ("7 d", 7 * DAY_S),
    "30d": ("30 d", 30 * DAY_S),
}
DEFAULT, CUSTOM = "1h", "custom"


@dataclass(frozen=True, slots=True)
class Kept:
    """For how many seconds rows of each kind are kept."""

    raw_s: float
    minutes_s: float


@dataclass(frozen=True, slots=True)
class Window:
    """From `since` up to but not including `until`, in steps of `step` seconds."""

    name: str
    since: int
    until: int
    step: int
    source: Source
    live: bool

    @property
    def seconds(self) -> int:
        return self.until - self.since

    @property
    def words(self) -> str:
        """As a part of a sentence."""
        return f"in the last {RANGES[self.name][0]}" if self.name in RANGES else "in this time"

    @property
    def refresh_s(self) -> int | None:
        """How often a page asks anew; None when nothing can change any more."""
        if not self.live:
            return None
        return {Source.RAW: 5 if self.step < 10 else 10, Source.MINUTE: 60, Source.HOUR: 300}[
            self.source
        ]

    @property
    def in_minutes(self) -> Window:
        """The same for rows that there are by the minute at best."""
        if self.source is not Source.RAW:
            return self
        return _made(self.name, self.since, self.until, Source.MINUTE, self.live)


def window(
    query: Mapping[str, str], now: datetime, kept: Kept, zone: tzinfo, default: str = DEFAULT
) -> Window:
    """What the address asks for: `range`, or `since` and `until`; nonsense means the default."""
    now_t = int(now.timestamp())
    name = query.get("range", "")
    begin, end = moment(query.get("since"), zone), moment(query.get("until"), zone)
    if begin is not None and (name == CUSTOM or not name):
        return _custom(begin, end, now_t, kept)
    if name not in RANGES:
        name = default
    since = now_t - RANGES[name][1]
    return _made(name, since, now_t, _source(since, now_t, now_t, kept), live=True)


def between(since: int, until: int, now: datetime, kept: Kept, name: str = CUSTOM) -> Window:
    """A window of one's own choice; it goes on when it ends now."""
    return replace(_custom(since, until, int(now.timestamp()), kept), name=name)


def _custom(begin: int, end: int | None, now_t: int, kept: Kept) -> Window:
    end = now_t if end is None else end
    begin, end = sorted((begin, end))
    until = min(max(end, begin + SHORTEST_S), now_t)
    since = max(min(begin, until - SHORTEST_S), until - LONGEST_S)
    return _made(CUSTOM, since, until, _source(since, until, now_t, kept), live=end >= now_t)


def _source(since: int, until: int, now_t: int, kept: Kept) -> Source:
    span, age = until - since, now_t - since
    if span <= RAW_UP_TO_S and age <= kept.raw_s:
        return Source.RAW
    if span <= MINUTES_UP_TO_S and age <= kept.minutes_s:
        return Source.MINUTE
    return Source.HOUR


def _made(name: str, since: int, until: int, source: Source, live: bool) -> Window:
    steps = STEPS[source]
    step = next((s for s in steps if (until - since) / s <= MOST_POINTS), steps[-1])
    return Window(name, since - since % step, until, step, source, live)


def moment(text: str | None, zone: tzinfo) -> int | None:
    """Epoch seconds of an ISO time; in `zone` when it names none."""
    if not text:
        return None
    try:
        moment = datetime.fromisoformat(text)
        return int((moment if moment.tzinfo else moment.replace(tzinfo=zone)).timestamp())
    except (ValueError, OverflowError):
        return None
