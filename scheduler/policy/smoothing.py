"""Policy: a mean in which what is older counts less, and how much of it is known."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp

# A look says what was since the look before, but of no more than so long.
MOST_GAP_S = 15.0


@dataclass(frozen=True, slots=True)
class Smoothed:
    """`total`: the weight of all time, `known`: of the time in which the value was known."""

    sum: float = 0.0
    known: float = 0.0
    total: float = 0.0

    def fed(self, value: float | None, seconds: float, smooth_s: float) -> Smoothed:
        """With what was seen `seconds` after the look before; None = unknown."""
        gap = max(0.0, seconds - MOST_GAP_S)
        aged = self._aged(gap, smooth_s) if gap else self
        keep = exp(-min(max(seconds, 0.001), MOST_GAP_S) / smooth_s)
        weight = 0.0 if value is None else 1 - keep
        return Smoothed(
            aged.sum * keep + weight * (value or 0.0),
            aged.known * keep + weight,
            aged.total * keep + 1 - keep,
        )

    def _aged(self, seconds: float, smooth_s: float) -> Smoothed:
        keep = exp(-seconds / smooth_s)
        return Smoothed(self.sum * keep, self.known * keep, self.total * keep + 1 - keep)

    def mean(self, coverage_pct: float = 50.0) -> float | None:
        """None when too little of the time is known."""
        if not self.known or 100 * self.known < coverage_pct * self.total:
            return None
        return self.sum / self.known
