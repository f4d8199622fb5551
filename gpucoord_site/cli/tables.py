"""Tables, times and amounts for a terminal. Unknown values are "-"."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from monitor.facts.formats import GIB, AnswerField
from monitor.facts.input_rules import escaped

UNKNOWN = "-"
GAP = "  "
MIB = 1024**2
LEAST_LAST = 12


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], width: int = 0) -> Iterator[str]:
    """Lines with aligned columns. The last column is cut at the width of the terminal."""
    cells = [[escaped(cell) for cell in row] for row in (heads, *rows)]
    widths = [max(len(row[at]) for row in cells) for at in range(len(heads))]
    room = width or shutil.get_terminal_size((120, 24)).columns
    last = max(LEAST_LAST, room - sum(widths[:-1]) - len(GAP) * (len(widths) - 1))
    for *front, end in cells:
        padded = [cell.ljust(widths[at]) for at, cell in enumerate(front)]
        yield GAP.join([*padded, end if len(end) <= last else f"{end[: last - 1]}…"]).rstrip()


def listing(
    columns: Mapping[str, Callable[[Any], object]],
    rows: Sequence[Any],
    empty: str,
    width: int = 0,
) -> Iterator[str]:
    """A table with these heads and the values under them; without rows only `empty`."""
    if rows:
        values = [[str(value(row)) for value in columns.values()] for row in rows]
        yield from table(list(columns), values, width)
    else:
        yield empty


def now() -> datetime:
    return datetime.now(UTC)


def parsed(iso: str) -> datetime:
    return datetime.fromisoformat(iso)


def moment(iso: str | None) -> str:
    """In the time zone of this computer; the date only if it is not today."""
    if iso is None:
        return UNKNOWN
    local = datetime.fromisoformat(iso).astimezone()
    is_today = local.date() == datetime.now(UTC).astimezone().date()
    return f"{local:%H:%M:%S}" if is_today else f"{local:%Y-%m-%d %H:%M}"


def between(begin: str | None, end: str | None) -> str:
    """From begin to end, or to now: 1-02:03:04."""
    if begin is None:
        return UNKNOWN
    until = now() if end is None else datetime.fromisoformat(end)
    return clock((until - datetime.fromisoformat(begin)).total_seconds())


def clock(seconds: float) -> str:
    minutes, rest = divmod(max(0, int(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    time = f"{hours:02}:{minutes:02}:{rest:02}"
    return f"{days}-{time}" if days else time


def gib(value: float | None) -> str:
    """One decimal; what would be 0.0 GiB is in MiB."""
    if value is None:
        return UNKNOWN
    return f"{value / MIB:.0f} MiB" if 0 < value < GIB / 20 else f"{value / GIB:.1f} GiB"


def percent(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.0f} %"


def text(value: Any) -> str:
    return UNKNOWN if value in (None, "") else str(value)


def worded(field: AnswerField, value: Any) -> str:
    """A value of an answer in words."""
    if value is None:
        return UNKNOWN
    if field.is_time:
        return moment(value)
    if field.unit:
        return {"s": clock, "bytes": gib, "pct": percent}[field.unit](value)
    if isinstance(value, dict):
        return ", ".join(f"{name}={each}" if each else name for name, each in value.items())
    return ", ".join(value) if isinstance(value, list) else str(value)
