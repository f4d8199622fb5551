"""Charts of a window of history: panels with lines, their scales, and the table behind them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from monitor.pages.cards import three
from monitor.pages.charts import Plot, Tick, nice_ceiling, plot, time_ticks
from monitor.policy.windows import Source, Window

TABLE_ROWS = 60
# One empty step of a rollup is a gap; samples may come a little late.
TOLERANCE = {Source.RAW: 2.5, Source.MINUTE: 1.5, Source.HOUR: 1.5}

# Sums over one step, by column, with `t`, its begin.
Row = Mapping[str, Any]
Value = Callable[[Row], float | None]


@dataclass(frozen=True, slots=True)
class Line:
    """One series of a panel. `kind`: "" the main one, "peak" its highest values, "second"."""

    label: str
    value: Value
    kind: str = ""


@dataclass(frozen=True, slots=True)
class Panel:
    """What one chart shows; `top` and `limit` where they are known. band: all above the limit is
    one."""

    title: str
    unit: str
    lines: tuple[Line, ...]
    top: float | None = None
    limit: float | None = None
    band: bool = False


@dataclass(frozen=True, slots=True)
class Drawn:
    """A line as the template draws it; `slot` is its place in the figures of a point."""

    slot: int
    label: str
    kind: str
    plot: Plot


@dataclass(frozen=True, slots=True)
class Chart:
    title: str
    unit: str
    lines: tuple[Drawn, ...]
    limit_text: str | None
    band: bool = False

    @property
    def frame(self) -> Plot:
        """Axis, gaps and limit: the same for all lines."""
        return self.lines[0].plot

    @property
    def slots(self) -> str:
        return " ".join(str(line.slot) for line in self.lines)


@dataclass(frozen=True, slots=True)
class Moment:
    """Something that happened, as a line through the charts: `at` of 1000 from the left."""

    at: float
    words: str

    @property
    def anchor(self) -> str:
        """The side on which its words have room."""
        return "end" if self.at > 850 else "start"


def moments(window: Window, happened: Mapping[str, float | None]) -> tuple[Moment, ...]:
    """Those in the window; `happened`: words -> epoch seconds."""
    return tuple(
        Moment(round(1000 * (t - window.since) / window.seconds, 1), words)
        for words, t in happened.items()
        if t is not None and window.since <= t <= window.until and window.seconds
    )


@dataclass(frozen=True, slots=True)
class History:
    """All charts of one window, the figures for the readout, and a shorter table of the same."""

    window: Window
    charts: tuple[Chart, ...]
    ticks: tuple[Tick, ...]
    points: str
    heads: tuple[str, ...]
    table: tuple[tuple[float | None, ...], ...]
    coverage_pct: float | None
    moments: tuple[Moment, ...] = ()

    @property
    def empty(self) -> bool:
        return not self.table


def history(
    panels: Sequence[Panel],
    rows: Sequence[Row],
    window: Window,
    coverage_pct: float | None,
    zone_offset_s: float = 0,
) -> History:
    """Charts of `rows` in the window."""
    lines = [line for panel in panels for line in panel.lines]
    figures = [(row["t"], *(three(line.value(row)) for line in lines)) for row in rows]
    slots = iter(range(len(lines)))
    several = {panel.title for panel in panels if len(panel.lines) > 1}
    return History(
        window=window,
        charts=tuple(_chart(panel, rows, window, slots) for panel in panels),
        ticks=time_ticks(window.since, window.until, offset=zone_offset_s),
        points=json.dumps(figures, separators=(",", ":")),
        heads=tuple(
            f"{panel.title}{f', {line.label}' if panel.title in several else ''}"
            f"{f', {panel.unit}' if panel.unit else ''}"
            for panel in panels
            for line in panel.lines
        ),
        table=tuple(figures[:: max(1, -(-len(figures) // TABLE_ROWS))]),
        coverage_pct=coverage_pct,
    )


def coverage(rows: Sequence[Row], window: Window) -> float | None:
    """For how much of the window there are readings, in percent."""
    seen = sum(row["seen_s"] for row in rows)
    return min(100.0, 100 * seen / window.seconds) if window.seconds else None


def mean(total: str, known: str, scale: float = 1) -> Value:
    """A sum by its known seconds; unknown when there are none."""

    def value(row: Row) -> float | None:
        return row[total] / row[known] / scale if row[known] else None

    return value


def highest(column: str, scale: float = 1) -> Value:
    def value(row: Row) -> float | None:
        return None if row[column] is None else row[column] / scale

    return value


def _chart(panel: Panel, rows: Sequence[Row], window: Window, slots: Any) -> Chart:
    half = window.step / 2
    series = [[(row["t"] + half, line.value(row)) for row in rows] for line in panel.lines]
    values = [v for points in series for _, v in points if v is not None]
    least = (panel.limit or 0.0) * 1.1 if panel.band and not panel.top else 0.0
    top = nice_ceiling(max([*values, panel.top or 0.0, least]))
    drawn = [
        Drawn(
            next(slots),
            line.label,
            line.kind,
            plot(
                points,
                window.since,
                window.until,
                top,
                window.step,
                panel.limit,
                TOLERANCE[window.source],
            ),
        )
        for line, points in zip(panel.lines, series, strict=True)
    ]
    word = "threshold" if panel.band else "limit"
    text = f"{word} {panel.limit:.0f} {panel.unit}" if panel.limit else None
    return Chart(panel.title, panel.unit, tuple(drawn), text, panel.band)
