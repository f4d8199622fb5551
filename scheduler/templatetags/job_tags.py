"""Template filters of the jobs' pages: sizes of logs and memory, short times."""

from __future__ import annotations

from django import template

from monitor.formats import UNKNOWN, duration, sig3

register = template.Library()


@register.filter
def size(value: int | None) -> str:
    """Bytes in the unit that reads best: "812 B", "64 KiB", "1.25 GiB"."""
    if value is None:
        return UNKNOWN
    amount, units = float(value), ["B", "KiB", "MiB", "GiB", "TiB"]
    while amount >= 1024 and len(units) > 1:
        amount /= 1024
        units.pop(0)
    return f"{value if units[0] == 'B' else sig3(amount)} {units[0]}"


@register.filter
def brief(seconds: float | None) -> str:
    """A time that may be short: exact below a minute, as many jobs differ only there."""
    if seconds is None:
        return UNKNOWN
    return duration(seconds) if seconds >= 60 else f"{sig3(seconds)} s"
