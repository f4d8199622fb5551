"""Charts of a time range, as lines or by owner, and heat strips of 24 hours."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from monitor.facts.formats import GIB
from monitor.models import Gpu, GpuHour
from monitor.pages.cards import round_sig3
from monitor.usage.charts import (
    Band,
    Plot,
    Point,
    Tick,
    count_ceiling,
    nice_ceiling,
    plot,
    stacked,
    time_ticks,
)
from monitor.usage.policy.ranges import HistoryWindow, Source
from monitor.usage.rows import processes as usage_sums
from monitor.usage.rows.processes import UsageRow, UsageTotals, steps_by_owner
from monitor.usage.rows.rollups import HOUR_S, floor

TABLE_ROWS = 60
# One empty step of a rollup is a gap. Samples may arrive a little late.
TOLERANCE = {Source.RAW: 2.5, Source.MINUTE: 1.5, Source.HOUR: 1.5}

# Sums over one step, by column, with `t`, its begin.
Row = Mapping[str, Any]
Value = Callable[[Row], float | None]


class ChartLine(Struct, frozen=True):
    """One series of a panel. `kind`: "" main series, "peak" its maxima, "second" another series."""

    label: str
    value: Value
    kind: str = ""


class OwnerShare(Struct, frozen=True):
    """The part of an owner in a figure, by steps of `step` seconds. `owner` None: not one user."""

    label: str
    owner: str | None
    step: int
    points: tuple[Point, ...]


class OwnerBand(Struct, frozen=True):
    label: str
    owner: str | None
    band: Band


class Panel(Struct, frozen=True):
    """The definition of a chart. `top` and `limit` None: unknown. `band`: shade above the limit.

    is_count: the scale has whole numbers only. `owners` stand on top of each other below the line.
    """

    title: str
    unit: str
    lines: tuple[ChartLine, ...]
    top: float | None = None
    limit: float | None = None
    band: bool = False
    is_count: bool = False
    limit_word: str = "limit"
    owners: tuple[OwnerShare, ...] = ()


class DrawnPanel(Struct, frozen=True):
    """A line as the template draws it. `slot` is its index in the values of a point."""

    slot: int
    label: str
    kind: str
    plot: Plot


class Chart(Struct, frozen=True):
    title: str
    unit: str
    lines: tuple[DrawnPanel, ...]
    limit_text: str | None
    band: bool = False
    owners: tuple[OwnerBand, ...] = ()

    @property
    def frame(self) -> Plot:
        """Axis, gaps and limit: the same for all lines."""
        return self.lines[0].plot

    @property
    def slots(self) -> str:
        return " ".join(str(line.slot) for line in self.lines)


class Readout(Struct, frozen=True):
    """A vertical mark in the charts. `at` is its position from the left, 0 to 1000."""

    at: float
    words: str

    @property
    def anchor(self) -> str:
        """The side of the mark with space for the words."""
        return "end" if self.at > 850 else "start"


def moments(window: HistoryWindow, marks: Mapping[str, float | None]) -> tuple[Readout, ...]:
    """The marks inside the window. `marks`: words -> epoch seconds."""
    return tuple(
        Readout(round(1000 * (t - window.since) / window.seconds, 1), words)
        for words, t in marks.items()
        if t is not None and window.since <= t <= window.until and window.seconds
    )


class History(Struct, frozen=True):
    """The charts of one window, the values for the readout, and a shorter table of values."""

    window: HistoryWindow
    charts: tuple[Chart, ...]
    ticks: tuple[Tick, ...]
    points: str
    heads: tuple[str, ...]
    table: tuple[tuple[float | None, ...], ...]
    coverage_pct: float | None
    moments: tuple[Readout, ...] = ()

    @property
    def empty(self) -> bool:
        return not self.table


def history(
    panels: Sequence[Panel],
    rows: Sequence[Row],
    window: HistoryWindow,
    coverage_pct: float | None,
    zone_offset_s: float = 0,
) -> History:
    """Charts of `rows` in the window."""
    lines = [line for panel in panels for line in panel.lines]
    figures = [(row["t"], *(round_sig3(line.value(row)) for line in lines)) for row in rows]
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


def coverage(rows: Sequence[Row], window: HistoryWindow) -> float | None:
    """The part of the window with readings, in percent."""
    seen_s = sum(row["seen_s"] for row in rows)
    return min(100.0, 100 * seen_s / window.seconds) if window.seconds else None


def mean(total: str, known_s: str, scale: float = 1) -> Value:
    """A sum divided by its known seconds. None: no known seconds."""

    def value(row: Row) -> float | None:
        return row[total] / row[known_s] / scale if row[known_s] else None

    return value


def highest(column: str, scale: float = 1) -> Value:
    def value(row: Row) -> float | None:
        return None if row[column] is None else row[column] / scale

    return value


def _chart(panel: Panel, rows: Sequence[Row], window: HistoryWindow, slots: Any) -> Chart:
    half = window.step / 2
    series = [[(row["t"] + half, line.value(row)) for row in rows] for line in panel.lines]
    values = [v for points in series for _, v in points if v is not None]
    least = (panel.limit or 0.0) * 1.1 if panel.band and not panel.top else 0.0
    ceiling = count_ceiling if panel.is_count else nice_ceiling
    top = ceiling(max([*values, panel.top or 0.0, least]))
    drawn = [
        DrawnPanel(
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
    word = "threshold" if panel.band else panel.limit_word
    text = f"{word} {round_sig3(panel.limit):g} {panel.unit}" if panel.limit else None
    owners = _owner_bands(panel.owners, window, top)
    return Chart(panel.title, panel.unit, tuple(drawn), text, panel.band, owners)


# The width of a letter and the margin of a label, in plot units of a chart on a desktop.
LETTER, MARGIN = 12.0, 20.0


def _owner_bands(
    shares: Sequence[OwnerShare], window: HistoryWindow, top: float
) -> tuple[OwnerBand, ...]:
    if not shares:
        return ()
    widths = [LETTER * len(share.label) + MARGIN for share in shares]
    series = [share.points for share in shares]
    bands = stacked(series, widths, window.since, window.until, top, shares[0].step)
    return tuple(
        OwnerBand(share.label, share.owner, band) for share, band in zip(shares, bands, strict=True)
    )


HOURS = 24
# Below this a GPU is idle; above it there are five levels of 20 %.
IDLE_PCT, STEP_PCT = 1.0, 20


class HeatCell(Struct, frozen=True):
    """One GPU in one hour. `busy_pct` None: unknown."""

    t: int
    busy_pct: float | None
    seen_s: int
    people: tuple[UsageRow, ...]
    first_of_run: bool
    goes_on: bool

    @property
    def until(self) -> int:
        return self.t + HOUR_S

    @property
    def level(self) -> str:
        if self.busy_pct is None:
            return "unknown"
        if self.busy_pct < IDLE_PCT:
            return "0"
        return str(min(5, 1 + int(self.busy_pct // STEP_PCT)))

    @property
    def main(self) -> UsageRow | None:
        return self.people[0] if self.people else None

    @property
    def idle_held(self) -> bool:
        """Whether processes were on the GPU without measured use."""
        main = self.main
        return main is not None and main.usage.share_pct is not None and main.usage.sm_s < 1


class HeatStrip(Struct, frozen=True):
    """One GPU's cells, oldest first, and its main users with their hours."""

    gpu: Gpu
    cells: tuple[HeatCell, ...]
    owners: tuple[tuple[str | None, int], ...]


def strips(gpus: Sequence[Gpu], now_t: int) -> list[HeatStrip]:
    """A strip for each GPU: 23 complete hours and the current hour."""
    since = floor(now_t, HOUR_S) - (HOURS - 1) * HOUR_S
    uuids = [gpu.uuid for gpu in gpus]
    rows = {
        (gpu, t): (total, known_s, seen_s)
        for gpu, t, total, known_s, seen_s in GpuHour.objects.filter(
            gpu_id__in=uuids, t__gte=since
        ).values_list("gpu_id", "t", "utilization_pct_s", "utilization_known_s", "seen_s")
    }
    people = usage_sums.hours(uuids, since, now_t)
    return [_strip(gpu, since, rows, people) for gpu in gpus]


def _strip(
    gpu: Gpu,
    since: int,
    rows: dict[tuple[str, int], tuple[float, int, int]],
    people: dict[tuple[str, int], list[UsageRow]],
) -> HeatStrip:
    cells: list[HeatCell] = []
    last = since + (HOURS - 1) * HOUR_S
    for t in range(since, since + HOURS * HOUR_S, HOUR_S):
        total, known_s, seen_s = rows.get((gpu.uuid, t), (0.0, 0, 0))
        on = tuple(people.get((gpu.uuid, t), ()))
        name = on[0].subject if on else None
        before = cells[-1].main.subject if cells and cells[-1].main else None
        busy = total / known_s if known_s else None
        first = bool(on) and (name != before or not (cells and cells[-1].people))
        cells.append(HeatCell(t, busy, seen_s, on, first, goes_on=t == last))
    counts: dict[str | None, int] = {}
    for cell in cells:
        if cell.main:
            counts[cell.main.subject] = counts.get(cell.main.subject, 0) + 1
    owners = sorted(counts.items(), key=lambda item: -item[1])
    return HeatStrip(gpu, tuple(cells), tuple(owners))


# At most this many bands; further owners share one.
MOST_OWNERS = 6


class _Figure(Struct, frozen=True):
    """A figure of a GPU as the sum of its processes: amount ÷ known seconds of the GPU ÷ scale."""

    amount: str
    known_s: str
    scale: float


FIGURES = {
    "utilization_pct": _Figure("sm_s", "utilization_known_s", 0.01),
    "memory_used_bytes": _Figure("memory_byte_s", "memory_known_s", GIB),
}


def shares(
    gpu_uuid: str, rows: Sequence[Row], window: HistoryWindow
) -> dict[str, tuple[OwnerShare, ...]]:
    """The shares of owners in each of FIGURES, the largest first.

    rows: sums of the GPU in the steps of the window. A step that is not over is omitted.
    """
    used = steps_by_owner(gpu_uuid, window)
    over = [row for row in rows if row["t"] + window.step <= window.until]
    return {name: _largest(used, over, window.step, figure) for name, figure in FIGURES.items()}


def _largest(
    used: dict[str | None, dict[int, UsageTotals]],
    rows: Sequence[Row],
    step: int,
    figure: _Figure,
) -> tuple[OwnerShare, ...]:
    series = {owner: _points(by_t, rows, step, figure) for owner, by_t in used.items()}
    sizes = {owner: sum(value or 0.0 for _, value in points) for owner, points in series.items()}
    ranked = sorted(
        (owner for owner in series if sizes[owner]), key=lambda owner: (-sizes[owner], owner or "")
    )
    alone = ranked if len(ranked) <= MOST_OWNERS else ranked[: MOST_OWNERS - 1]
    made = [OwnerShare(owner or "unknown", owner, step, series[owner]) for owner in alone]
    others = [series[owner] for owner in ranked[len(alone) :]]
    if others:
        made.append(OwnerShare(f"{len(others)} others", None, step, tuple(map(_sum, *others))))
    return tuple(made)


def _points(
    by_t: dict[int, UsageTotals], rows: Sequence[Row], step: int, figure: _Figure
) -> tuple[Point, ...]:
    def value(row: Row) -> float | None:
        known_s = row[figure.known_s]
        if not known_s:
            return None
        usage = by_t.get(row["t"])
        amount: float = getattr(usage, figure.amount) if usage else 0.0
        return amount / float(known_s) / figure.scale

    return tuple((row["t"] + step / 2, value(row)) for row in rows)


def _sum(*points: Point) -> Point:
    known = [value for _, value in points if value is not None]
    return points[0][0], sum(known) if known else None
