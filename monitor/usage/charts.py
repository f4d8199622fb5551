"""Geometry of charts: pure. Figures go in, SVG paths, ticks and bands come out."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from msgspec import Struct

# (time, value); a value of None is a gap.
Point = tuple[float, float | None]

PLOT_W, PLOT_H = 1000.0, 100.0
SPARK_W, SPARK_H = 120.0, 32.0
_TIME_STEPS = (10, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400)


class Tick(Struct, frozen=True):
    """A mark on an axis: `at` in plot units and in percent of the axis' length."""

    at: float
    pct: float
    value: float


class Plot(Struct, frozen=True):
    """Input of a template that draws one series; y grows downwards as in SVG."""

    line: str
    area: str
    dots: tuple[tuple[float, float], ...]
    gaps: tuple[tuple[float, float], ...]
    y_ticks: tuple[Tick, ...]
    limit_y: float | None


def nice_ceiling(value: float) -> float:
    """The smallest top >= value whose quarters are round numbers; 1 for nothing at all."""
    if value <= 0 or not math.isfinite(value):
        return 1.0
    size = 10.0 ** math.floor(math.log10(value))
    for step in (1.0, 1.2, 1.6, 2.0, 2.4, 3.2, 4.0, 6.0, 8.0, 10.0):
        if value <= step * size * (1 + 1e-9):
            return step * size
    return 10.0 * size


def count_ceiling(value: float) -> float:
    """The smallest top >= value whose quarters are whole numbers."""
    quarter = nice_ceiling(value / 4)
    return 4 * max(1.0, math.ceil(quarter))


def value_ticks(top: float, count: int = 4) -> tuple[Tick, ...]:
    """count + 1 ticks from 0 at the bottom to `top`."""
    values = [top * i / count for i in range(count + 1)]
    return tuple(Tick(PLOT_H - PLOT_H * v / top, 100 - 100 * v / top, v) for v in values)


def time_ticks(since: float, until: float, most: int = 7, offset: float = 0) -> tuple[Tick, ...]:
    """At most `most` ticks at round times; `offset` is the zone's distance from UTC in seconds."""
    span = until - since
    step = next((s for s in _TIME_STEPS if span / s <= most), None)
    if step is None:
        step = math.ceil(span / most / 86400) * 86400
    first = math.ceil((since + offset) / step) * step - offset
    times = [first + i * step for i in range(int((until - first) // step) + 1)]
    return tuple(Tick(PLOT_W * (t - since) / span, 100 * (t - since) / span, t) for t in times)


def runs(points: Sequence[Point], longest_step: float) -> Iterator[list[tuple[float, float]]]:
    """The segments without a gap: neither a None nor a step longer than `longest_step`."""
    run: list[tuple[float, float]] = []
    for t, value in points:
        if run and (value is None or t - run[-1][0] > longest_step):
            yield run
            run = []
        if value is not None:
            run.append((t, value))
    if run:
        yield run


def plot(
    points: Sequence[Point],
    since: float,
    until: float,
    top: float,
    step: float,
    limit: float | None = None,
    tolerance: float = 2.5,
) -> Plot:
    """A series in the window, on a scale from 0 to `top`; points lie `step` seconds apart.

    Where two are more than `tolerance` steps apart there is a gap.
    """
    longest = step * tolerance
    x, y = _scales(since, until, top)
    stretches = list(runs(points, longest))
    holes = _holes(stretches, since, until, longest)
    lines = [[(x(t), y(v)) for t, v in run] for run in stretches]
    return Plot(
        line="".join(path(line) for line in lines if len(line) > 1),
        area="".join(_area(line, PLOT_H) for line in lines if len(line) > 1),
        dots=tuple(line[0] for line in lines if len(line) == 1),
        gaps=tuple((x(a), round(x(b) - x(a), 1)) for a, b in holes),
        y_ticks=value_ticks(top),
        limit_y=None if limit is None or limit > top else y(limit),
    )


class Band(Struct, frozen=True):
    """A part of a stack: its path, and the middle of its label, if there is room for one."""

    path: str
    label_at: tuple[float, float] | None


def stacked(
    series: Sequence[Sequence[Point]],
    label_widths: Sequence[float],
    since: float,
    until: float,
    top: float,
    step: float,
) -> list[Band]:
    """Each series on top of those before it, the first at the bottom.

    All have the same times, the middles of their steps, and gaps at the same ones.
    label_widths: in plot units.
    """
    x, y = _scales(since, until, top)
    floors: dict[float, float] = {}
    bands = []
    for points, label_width in zip(series, label_widths, strict=True):
        path_parts: list[str] = []
        places: list[tuple[float, tuple[float, float]]] = []
        for run in runs(points, 1.5 * step):
            edges = [(x(t), y(floors.get(t, 0.0)), y(floors.get(t, 0.0) + v)) for t, v in run]
            for part in _thick(edges):
                half = PLOT_W * step / (until - since) / 2
                path_parts.append(_ribbon(part, half))
                places.extend(_roomy(part, label_width))
        for t, value in points:
            floors[t] = floors.get(t, 0.0) + (value or 0.0)
        widest = max(places, default=None)
        bands.append(Band("".join(path_parts), widest[1] if widest else None))
    return bands


def _scales(
    since: float, until: float, top: float
) -> tuple[Callable[[float], float], Callable[[float], float]]:
    """The places of a time and of a value, in plot units."""
    return (
        lambda t: round(PLOT_W * _within((t - since) / (until - since)), 1),
        lambda value: round(PLOT_H - PLOT_H * _within(value / top), 1),
    )


# A place of a band: x, its lower and its upper edge.
_Edge = tuple[float, float, float]
# A label needs this height, in plot units.
_LABEL_H = 13.0


def _thick(edges: Sequence[_Edge]) -> Iterator[list[_Edge]]:
    """The parts where the band has a height, each with its neighbours without any."""
    part: list[_Edge] = []
    for before, edge in zip((None, *edges), edges, strict=False):
        if edge[1] > edge[2]:
            if not part and before:
                part.append(before)
            part.append(edge)
        elif part:
            yield [*part, edge]
            part = []
    if part:
        yield part


def _ribbon(part: Sequence[_Edge], half: float) -> str:
    """The outline of a part of a band, half a step longer at both ends."""
    first, last = part[0], part[-1]
    begin, end = max(0.0, first[0] - half), min(PLOT_W, last[0] + half)
    upper = [(begin, first[2]), *((x, high) for x, _, high in part), (end, last[2])]
    lower = [(begin, first[1]), *((x, low) for x, low, _ in part), (end, last[1])]
    return path([*upper, *reversed(lower)]) + "Z"


def _roomy(part: Sequence[_Edge], width: float) -> Iterator[tuple[float, tuple[float, float]]]:
    """The places with room for a label: the width of each and its middle."""
    high: list[_Edge] = []
    for edge in (*part, (0.0, 0.0, 0.0)):
        if edge[1] - edge[2] >= _LABEL_H:
            high.append(edge)
            continue
        if high and high[-1][0] - high[0][0] >= width:
            floor, ceiling = min(low for _, low, _ in high), max(top for _, _, top in high)
            middle = high[len(high) // 2]
            level = (floor + ceiling) / 2 if floor > ceiling else (middle[1] + middle[2]) / 2
            yield high[-1][0] - high[0][0], ((high[0][0] + high[-1][0]) / 2, round(level, 1))
        high = []


def spark(points: Sequence[Point], since: float, until: float, step: float) -> tuple[str, str]:
    """Line and area of a sparkline of percentages, SPARK_W × SPARK_H."""

    def place(t: float, value: float) -> tuple[float, float]:
        share = _within(value / 100)
        along = _within((t - since) / (until - since))
        return round(SPARK_W * along, 1), round(1 + (SPARK_H - 2) * (1 - share), 1)

    lines = [[place(t, v) for t, v in run] for run in runs(points, step * 2.5)]
    # A single minute is drawn as a dash; otherwise it would be invisible.
    lines = [line if len(line) > 1 else [line[0], (line[0][0] + 1, line[0][1])] for line in lines]
    return "".join(map(path, lines)), "".join(_area(line, SPARK_H) for line in lines)


def path(points: Sequence[tuple[float, float]]) -> str:
    """An SVG path through the points, with short numbers."""
    return "M" + "L".join(f"{_short(x)} {_short(y)}" for x, y in points)


def _area(line: Sequence[tuple[float, float]], floor: float) -> str:
    bottom = _short(floor)
    return f"{path(line)}L{_short(line[-1][0])} {bottom}L{_short(line[0][0])} {bottom}Z"


def _holes(
    stretches: Sequence[Sequence[tuple[float, float]]], since: float, until: float, longest: float
) -> Iterator[tuple[float, float]]:
    """The unknown segments, between the known ones and at both ends."""
    edge = since
    for run in stretches:
        if run[0][0] - edge > longest:
            yield edge, run[0][0]
        edge = run[-1][0]
    if until - edge > longest:
        yield edge, until


def _within(share: float) -> float:
    return min(1.0, max(0.0, share))


def _short(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
