"""Time range of a history page: its rows and steps. Retention of events."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo
from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

from monitor.facts.input_rules import possible_time
from monitor.facts.thresholds import threshold

HOUR_S, DAY_S = 3600, 86400
# More points than this cannot be distinguished in a chart.
MOST_POINTS = 400
SHORTEST_S, LONGEST_S = 60, 3 * 366 * DAY_S
# Longer ranges are drawn from hours even if minutes still exist.
MINUTES_UP_TO_S, RAW_UP_TO_S = 3 * DAY_S, 2.5 * HOUR_S


class Source(StrEnum):
    """The rows of a range: samples of one second, minutes or hours."""

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


class HistoryRange(Struct, frozen=True):
    """Retention of each kind of row, in seconds."""

    raw_s: float
    minutes_s: float


class HistoryWindow(Struct, frozen=True):
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
        """The range as a part of a sentence."""
        return f"in the last {RANGES[self.name][0]}" if self.name in RANGES else "in this time"

    @property
    def refresh_s(self) -> int | None:
        """Interval at which a page reloads; None if nothing can change."""
        if not self.live:
            return None
        return {Source.RAW: 5 if self.step < 10 else 10, Source.MINUTE: 60, Source.HOUR: 300}[
            self.source
        ]

    @property
    def in_minutes(self) -> HistoryWindow:
        """The same window for rows that exist by the minute at best."""
        if self.source is not Source.RAW:
            return self
        return _made(self.name, self.since, self.until, Source.MINUTE, self.live)


def window(
    query: Mapping[str, str],
    now: datetime,
    stored: HistoryRange,
    zone: tzinfo,
    default: str = DEFAULT,
) -> HistoryWindow:
    """The window of the query: `range`, or `since` and `until`. Invalid values mean the default."""
    now_t = int(now.timestamp())
    name = query.get("range", "")
    begin, end = moment(query.get("since"), zone), moment(query.get("until"), zone)
    if begin is not None and (name == CUSTOM or not name):
        return _custom(begin, end, now_t, stored)
    if name not in RANGES:
        name = default
    since = now_t - RANGES[name][1]
    return _made(name, since, now_t, _source(since, now_t, now_t, stored), live=True)


def between(
    since: int, until: int, now: datetime, stored: HistoryRange, name: str = CUSTOM
) -> HistoryWindow:
    """A window from `since` to `until`; it is live if it ends now."""
    return replace(_custom(since, until, int(now.timestamp()), stored), name=name)


def _custom(begin: int, end: int | None, now_t: int, stored: HistoryRange) -> HistoryWindow:
    end = now_t if end is None else end
    begin, end = sorted((begin, end))
    until = min(max(end, begin + SHORTEST_S), now_t)
    since = max(min(begin, until - SHORTEST_S), until - LONGEST_S)
    return _made(CUSTOM, since, until, _source(since, until, now_t, stored), live=end >= now_t)


def _source(since: int, until: int, now_t: int, stored: HistoryRange) -> Source:
    span, age = until - since, now_t - since
    if span <= RAW_UP_TO_S and age <= stored.raw_s:
        return Source.RAW
    if span <= MINUTES_UP_TO_S and age <= stored.minutes_s:
        return Source.MINUTE
    return Source.HOUR


def _made(name: str, since: int, until: int, source: Source, live: bool) -> HistoryWindow:
    steps = STEPS[source]
    step = next((s for s in steps if (until - since) / s <= MOST_POINTS), steps[-1])
    return HistoryWindow(name, since - since % step, until, step, source, live)


def moment(text: str | None, zone: tzinfo) -> int | None:
    """Epoch seconds of an ISO time, in `zone` if it names none. None: not a valid time."""
    if not text:
        return None
    try:
        moment = datetime.fromisoformat(text)
        valid = possible_time(moment if moment.tzinfo else moment.replace(tzinfo=zone))
    except ValueError:
        return None
    return int(valid.timestamp())


# Changes of a GPU between idle and busy, of which there are many, and records of sent alerts and
# warnings.
STATE_CHANGES_KEPT, MESSAGES_KEPT = timedelta(days=7), timedelta(days=90)


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """Retention of events. Samples have settings of their own."""

    # fmt: off
    event_days: float = threshold(90, "Events", unit="d", ge=1, le=3650,
        help="Retention period for events.")
    # fmt: on
