"""Forecast of the mean daily demand: a straight line by least squares, with an 80 % interval.

Textbook linear regression: the prediction interval of day x is ± t · s · √(1 + 1/n + (x − x̄)²/Sxx)
with the residual standard error s of n days and the 90 % quantile t of the normal distribution
(1.28; for the 14 days and more that are required, Student's t is at most 6 % larger). It assumes
that growth goes on as it did and that days are independent. Weekends widen the interval.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from math import sqrt
from statistics import NormalDist

from monitor.facts.thresholds import threshold
from reports.capacity.facts import Forecast

# Two weeks: each weekday twice.
LEAST_DAYS = 14
# No further ahead than twice what was seen, and never more than a year.
HORIZON_FACTOR, LONGEST_HORIZON = 2, 365
INTERVAL = 0.8
EPOCH = date(1970, 1, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityPolicy:
    """Capacity planning."""

    # fmt: off
    enabled: bool = threshold(True, "Capacity planning",
        "Percentiles, forecast and what-if replays, computed once a day, and their metrics.")
    # fmt: on


def forecast(days: Sequence[tuple[int, float]], supply: int) -> Forecast | None:
    """From (UTC day number, mean demand in GPUs); None = fewer days than LEAST_DAYS."""
    if len(days) < LEAST_DAYS:
        return None
    line = _Line(days)
    first = days[-1][0] + 1
    horizon = min(LONGEST_HORIZON, HORIZON_FACTOR * len(days))
    ahead = [(day, *line.at(day)) for day in range(first, first + horizon)]

    def exceeds(bound: int) -> date | None:
        day = next((row[0] for row in ahead if row[bound] > supply), None)
        return None if day is None else EPOCH + timedelta(days=day)

    shown = [*ahead[::7], *([ahead[-1]] if (len(ahead) - 1) % 7 else [])]
    return Forecast(
        days=len(days),
        supply=supply,
        slope=7 * line.slope,
        horizon=EPOCH + timedelta(days=ahead[-1][0]),
        points=tuple(
            (EPOCH + timedelta(days=day), low, mid, high) for day, low, mid, high in shown
        ),
        earliest=exceeds(3),
        reached=exceeds(2),
        latest=exceeds(1),
    )


class _Line:
    def __init__(self, days: Sequence[tuple[int, float]]) -> None:
        n = len(days)
        self._n = n
        self._mean_x = sum(x for x, _ in days) / n
        mean_y = sum(y for _, y in days) / n
        self._sxx = sum((x - self._mean_x) ** 2 for x, _ in days)
        sxy = sum((x - self._mean_x) * (y - mean_y) for x, y in days)
        self.slope = sxy / self._sxx
        self._base = mean_y - self.slope * self._mean_x
        squares = sum((y - self._base - self.slope * x) ** 2 for x, y in days)
        self._error = sqrt(max(0.0, squares) / (n - 2))
        self._z = NormalDist().inv_cdf((1 + INTERVAL) / 2)

    def at(self, x: int) -> tuple[float, float, float]:
        """(low, middle, high); never below 0 GPUs."""
        middle = self._base + self.slope * x
        far = (x - self._mean_x) ** 2 / self._sxx
        spread = self._z * self._error * sqrt(1 + 1 / self._n + far)
        return max(0.0, middle - spread), max(0.0, middle), max(0.0, middle + spread)
