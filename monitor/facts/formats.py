"""Figures and times as people read them, "–" for the unknown, and declarations of answers.

The tables of a subject say which values it has. Standard library only.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from datetime import UTC, datetime, timedelta
from types import NoneType
from typing import Any, TypeVar, get_args
from zlib import crc32
from zoneinfo import ZoneInfo

UNKNOWN = "–"
GIB = 1024**3


def user_number(user: str) -> int:
    """A number for the colour of a user, the same on every page and in every report.

    The suffix is one with which the users of the demo get different colours.
    """
    return crc32(f"{user}99".encode())


def shortest_size(value: int) -> str:
    """Bytes in the unit that reads best: "812 B", "64 KiB", "1.25 GiB"."""
    amount, units = float(value), ["B", "KiB", "MiB", "GiB", "TiB"]
    while amount >= 1024 and len(units) > 1:
        amount /= 1024
        units.pop(0)
    return f"{value if units[0] == 'B' else sig3(amount)} {units[0]}"


def sig3(value: float | None) -> str:
    """Three significant digits without an exponent: 0.123, 1.23, 12.3, 123, 1234."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    if value == 0:
        return "0"
    rounded = float(f"{value:.3g}")
    decimals = max(0, 2 - math.floor(math.log10(abs(rounded))))
    return f"{value:.0f}" if decimals == 0 else f"{rounded:.{min(decimals, 3)}f}"


def gib(value: float | None) -> str:
    """Bytes as GiB, from a thousand on as TiB: "12.3 GiB", "1.82 TiB"."""
    if value is None:
        return UNKNOWN
    size = value / GIB
    return f"{sig3(size)} GiB" if abs(size) < 1000 else f"{sig3(size / 1024)} TiB"


def percent(value: float | None) -> str:
    """A share of 100 as a whole number: "43 %"."""
    return UNKNOWN if value is None else f"{value:.0f} %"


def part(value: float | None) -> str:
    """0.256 as "25.6 %"; two decimals at most, so that the points of a column are close."""
    if value is None:
        return UNKNOWN
    if 0 < value < 0.001:
        return "<0.1 %"
    return f"{100 * value:.2f} %" if 0 < value < 0.01 else f"{sig3(100 * value)} %"


def first_few(texts: Sequence[str], most: int = 3, separator: str = ", ") -> str:
    """`GPU 1, GPU 2, GPU 3 and 5 more`: no list is cut without a count of the rest."""
    rest = len(texts) - most
    more = f" and {rest} more" if rest > 0 else ""
    return separator.join(texts[:most]) + more


def use_of(gpu: str, pct: float | None, lasts: timedelta | float, *, at_most: bool = False) -> str:
    """How little of `gpu` was used: "has used 0.7 % of GPU 1 in the last 3 min".

    It says "has not used" only if no use at all was measured. pct: the mean, or with `at_most` an
    upper bound of it; None = unknown.
    """
    if pct is None:
        return f"has used an unknown part of {gpu} in the last {duration(lasts)}"
    if pct == 0:
        return f"has not used {gpu} for {duration(lasts)}"
    figure = "less than 0.1" if pct < 0.1 else f"{'at most ' * at_most}{pct:.1f}"
    return f"has used {figure} % of {gpu} in the last {duration(lasts)}"


def watts(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.0f} W"


def celsius(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.0f} °C"


def duration(value: float | timedelta | None) -> str:
    """Two units at most: "12 s", "41 min", "3 h 20 min", "2 d 4 h"."""
    if value is None:
        return UNKNOWN
    seconds = int(value.total_seconds() if isinstance(value, timedelta) else value)
    if seconds < 60:
        return f"{seconds} s"
    minutes = seconds // 60
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 24:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    days, hours = divmod(hours, 24)
    return f"{days} d {hours} h" if hours else f"{days} d"


# Moments in stored texts: texts keep the instant, and pages show it in the viewer's zone.

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


UNITS: Mapping[str, Callable[[Any], str]] = {"s": duration, "pct": percent, "bytes": gib}


@dataclass(frozen=True, slots=True)
class AnswerField:
    """A value of a record as it goes out. Unknown is None, at every door.

    name: in REST, with its unit. json: its type there. source: its attribute in the record, or that
    of an attribute; "" = the name. blank: what an empty text stands for; None: for None, if the
    value may be unknown, else for itself.
    is_listed: part of lists, too. is_private: None for users other than the owner and operators.
    for_agents: among the values that AI agents get.
    label: of its row on the command line, title: on the page of the record; "" = it has none there.
    missing: the page's word for an unknown or empty value; "" = no row.
    """

    name: str
    json: Any
    help: str | None = None
    _: KW_ONLY
    source: str = ""
    blank: str | None = None
    is_listed: bool = False
    is_private: bool = False
    for_agents: bool = False
    label: str = ""
    title: str = ""
    missing: str = ""

    @property
    def is_time(self) -> bool:
        return datetime in (self.json, *get_args(self.json))

    @property
    def unit(self) -> str:
        """s, pct or bytes; "" = it has none."""
        end = self.name.rpartition("_")[2]
        return end if end in UNITS else ""

    def text(self, value: Any) -> str:
        """As pages show it; "" = no value."""
        if value in (None, ""):
            return ""
        return UNITS[self.unit](value) if self.unit else str(value)

    def of(self, record: object) -> Any:
        first, _, second = (self.source or self.name).partition(".")
        value: Any = getattr(record, first)
        if second and value is not None:
            value = getattr(value, second)
        is_blank = value == "" and (self.blank is not None or NoneType in get_args(self.json))
        return self.blank if is_blank else value


def values_of(
    fields: Iterable[AnswerField], record: object, *, sees_all: bool = True
) -> dict[str, Any]:
    """By name. sees_all: the viewer may see private values."""
    return {
        field.name: None if field.is_private and not sees_all else field.of(record)
        for field in fields
    }


# A fact from a record with the same attributes, such as a row.


Fact = TypeVar("Fact")


def fact_from(kind: type[Fact], record: object, /, **others: Any) -> Fact:
    """A fact of `kind` with `others`, and the attributes of the record for all other fields."""
    names = kind.__annotations__.keys() - others.keys()
    return kind(**{name: getattr(record, name) for name in names}, **others)
