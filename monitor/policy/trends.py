"""Whether figures rise: the median of all slopes, which no outlier and no single step moves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median


@dataclass(frozen=True, slots=True)
class Trend:
    """slope: per second. rising: the part (0..1) of all pairs of points that rise."""

    slope: float
    rising: float


def trend(points: Sequence[tuple[float, float]]) -> Trend | None:
    """Theil and Sen's estimate; None for fewer than three points."""
    if len(points) < 3:
        return None
    slopes = [(v2 - v1) / (t2 - t1) for (t1, v1), (t2, v2) in combinations(points, 2) if t2 > t1]
    if not slopes:
        return None
    return Trend(median(slopes), sum(slope > 0 for slope in slopes) / len(slopes))
