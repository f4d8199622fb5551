"""Charts of a GPU by owner: who used it, and who held its memory, in each step of a range."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from monitor.facts.formats import GIB
from monitor.usage.history.charts import Point
from monitor.usage.history.pages.chart_panels import OwnerShare, Row
from monitor.usage.policy.ranges import HistoryWindow
from monitor.usage.rows.processes import UsageTotals, steps_by_owner

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
