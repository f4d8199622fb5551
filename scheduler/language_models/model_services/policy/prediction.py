"""Policy: how many instances a service will need, by the same hour of earlier weeks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

# Instances are planned for this part of their places, so that requests seldom queue.
BUSY_PART = 0.7
# A week with fewer requests in the hour does not count as demand.
LEAST_REQUESTS = 1.0
# Until answers were measured.
ANSWER_S = 10.0
# Needed to call it a pattern.
LEAST_WEEKS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """Requests of a service in the hour that comes, one figure per earlier week.

    answer_s: mean seconds from a request to its last byte; None = not measured.
    """

    weeks: Sequence[float] = ()
    answer_s: float | None = None

    @property
    def per_hour(self) -> float:
        return sum(self.weeks) / len(self.weeks) if self.weeks else 0.0


@dataclass(frozen=True, slots=True)
class Prediction:
    """How many instances are needed, and why."""

    instances: int
    reason: str


def predict(demand: Demand, concurrency: int, least: int, most: int) -> Prediction | None:
    """None: earlier weeks show no demand in this hour."""
    used = [count for count in demand.weeks if count >= LEAST_REQUESTS]
    if len(used) < LEAST_WEEKS or len(used) * 2 < len(demand.weeks):
        return None
    answer_s = ANSWER_S if demand.answer_s is None else demand.answer_s
    busy = demand.per_hour * answer_s / 3600
    needed = ceil(busy / (concurrency * BUSY_PART)) if busy else 1
    number = min(most, max(least, 1, needed))
    return Prediction(
        number,
        f"{demand.per_hour:.0f} requests an hour came in this hour of the last"
        f" {len(demand.weeks)} weeks, and an answer takes {answer_s:.1f} s.",
    )
