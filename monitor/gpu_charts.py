"""The history charts of a GPU page: which series, on which scales."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from monitor.cards import in_gib, three, whole
from monitor.charts import Plot, Tick, nice_ceiling, plot, time_ticks
from monitor.formats import GIB
from monitor.history import Bucket

# range in the address -> (words, seconds, seconds per point, seconds until it is drawn anew)
RANGES: dict[str, tuple[str, int, int, int]] = {
    "10min": ("10 min", 600, 2, 5),
    "1h": ("1 h", 3600, 10, 10),
    "2h": ("2 h", 7200, 20, 20),
}
DEFAULT_RANGE = "1h"
TABLE_ROWS = 60

# (epoch seconds, utilisation, memory, power, temperature), in the units of the charts
Figures = tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class Chart:
    """One series with its scale."""

    slot: int
    title: str
    unit: str
    plot: Plot
    limit_text: str | None = None


@dataclass(frozen=True, slots=True)
class History:
    """All charts of one window, the figures for the readout, and a shorter table of the same."""

    charts: tuple[Chart, ...]
    ticks: tuple[Tick, ...]
    points: str
    table: tuple[Figures, ...]
    since: int
    until: int
    step: int

    @property
    def empty(self) -> bool:
        return not self.table


def history(
    found: Sequence[Bucket],
    since: int,
    until: int,
    step: int,
    memory_total_bytes: int | None,
    power_limit_w: float | None,
    zone_offset_s: float = 0,
) -> History:
    """Charts of `found` in the window; limits and totals give the scales where they are known."""

    def chart(
        slot: int,
        title: str,
        unit: str,
        value: Callable[[Bucket], float | None],
        top: float | None,
        limit: float | None = None,
    ) -> Chart:
        points = [(b.t + step / 2, value(b)) for b in found]
        highest = max((v for _, v in points if v is not None), default=0.0)
        scale = nice_ceiling(max(highest, top or 0.0))
        text = f"limit {limit:.0f} {unit}" if limit else None
        return Chart(slot, title, unit, plot(points, since, until, scale, step, limit), text)

    return History(
        charts=(
            chart(0, "Utilisation", "%", lambda b: b.utilization_pct, 100),
            chart(1, "Memory", "GiB", _memory, in_gib(memory_total_bytes)),
            chart(2, "Power", "W", lambda b: b.power_w, power_limit_w, power_limit_w),
            chart(3, "Temperature", "°C", lambda b: b.temperature_c, 100),
        ),
        ticks=time_ticks(since, until, offset=zone_offset_s),
        points=json.dumps([_figures(b) for b in found], separators=(",", ":")),
        table=tuple(_figures(b) for b in found[:: max(1, -(-len(found) // TABLE_ROWS))]),
        since=since,
        until=until,
        step=step,
    )


def _memory(bucket: Bucket) -> float | None:
    return None if bucket.memory_used_bytes is None else bucket.memory_used_bytes / GIB


def _figures(b: Bucket) -> Figures:
    values = (
        whole(b.utilization_pct),
        three(_memory(b)),
        whole(b.power_w),
        whole(b.temperature_c),
    )
    return (b.t, *values)
