"""Figures as people read them: three significant digits, units, "–" for the unknown."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import timedelta
from zlib import crc32

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
    """0.256 as "25.6 %"."""
    if value is None:
        return UNKNOWN
    return "<0.1 %" if 0 < value < 0.001 else f"{sig3(100 * value)} %"


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
