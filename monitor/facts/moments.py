"""Moments in stored texts: texts keep the instant, and pages show it in the viewer's zone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_WEEKDAY = (
    rf"\b(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) ([0-9]{{1,2}}) ({'|'.join(_MONTHS)})"
    r" ([0-9]{2}):([0-9]{2}) \(([A-Za-z0-9_+/-]{1,60})\)"
)
_DATE = (
    r"\b(?P<date>[0-9]{4}-[0-9]{2}-[0-9]{2})"
    r"[ T](?P<time>[0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]{1,6})?)?)"
    r"(?: UTC\b|(?P<offset>[+-][0-9]{2}:[0-9]{2})| \((?P<zone>[A-Za-z0-9_+/-]{1,60})\))"
)
_MOMENT = re.compile(f"{_WEEKDAY}|{_DATE}")


def in_utc(at: datetime) -> str:
    """An instant for a stored text: "2026-03-02 22:00 UTC". `sentence_parts` reads it."""
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


def in_zone(at: datetime, zone: str) -> str:
    """An instant in this zone, for a stored text: "2026-03-02 22:00 (Europe/Berlin)"."""
    return f"{at.astimezone(ZoneInfo(zone)):%Y-%m-%d %H:%M} ({zone})"


def sentence_parts(text: str, now: datetime) -> Iterator[str | datetime]:
    """The sentence, with each moment as a datetime; unreadable moments stay text.

    Moments are "2026-03-02 22:00 UTC" or "2026-03-02 22:00 (Europe/Berlin)", ISO 8601 with an
    offset, or "Mon 2 Mar 22:00 (UTC)". Those without a year are in the year that makes them
    closest to `now`.
    """
    end = 0
    for match in _MOMENT.finditer(text):
        moment = _dated(match) if match["date"] else _closest(match, now)
        if moment is not None:
            yield text[end : match.start()]
            yield moment
            end = match.end()
    yield text[end:]


def _dated(match: re.Match[str]) -> datetime | None:
    # ZoneInfo raises any of these for an unknown name.
    with suppress(ValueError, KeyError, OSError):
        if match["zone"]:
            local = datetime.fromisoformat(f"{match['date']}T{match['time']}")
            return local.replace(tzinfo=ZoneInfo(match["zone"]))
        text = f"{match['date']}T{match['time']}{match['offset'] or '+00:00'}"
        return datetime.fromisoformat(text)
    return None


def _closest(match: re.Match[str], now: datetime) -> datetime | None:
    day, month, hour, minute = match[1], _MONTHS.index(match[2]) + 1, match[3], match[4]
    candidates = []
    for year in (now.year - 1, now.year, now.year + 1):
        # Only leap years have 29 February. ZoneInfo raises any of these for an unknown name.
        with suppress(ValueError, KeyError, OSError):
            zone = ZoneInfo(match[5])
            candidates.append(datetime(year, month, int(day), int(hour), int(minute), tzinfo=zone))
    return min(candidates, key=lambda moment: abs(moment - now), default=None)
