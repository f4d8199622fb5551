"""What calls of the driver cost, and which have grown so slow that they are made less often."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from datetime import datetime

from monitor.use_facts import CallCost

# The newest so many times of each kind of call are kept.
_KEPT = 200
# One kind of call may take so much of the time between two sweeps; it is judged every so often.
SHARE, JUDGED_EVERY = 0.05, 5
MOST_SKIPPED = 10


class _Times:
    """The times of one kind of call, in seconds."""

    def __init__(self) -> None:
        self.newest: deque[float] = deque(maxlen=_KEPT)
        self.count = self.errors = 0
        self.every = 1

    def add(self, seconds: float) -> None:
        self.newest.append(seconds)
        self.count += 1


class CallTimes:
    """How long calls took, by kind; and which may be left out of a sweep for being slow."""

    def __init__(self) -> None:
        self._times: dict[str, _Times] = {}
        self._sweeps = 0
        self._begun_at: datetime | None = None
        self._paced: set[str] = set()
        self.costs: tuple[CallCost, ...] = ()

    def add(self, name: str, seconds: float, is_error: bool) -> None:
        times = self._times.get(name)
        if times is None:
            times = self._times[name] = _Times()
        times.add(seconds)
        times.errors += is_error

    def is_due(self, name: str) -> bool:
        """Whether a kind of call is to be made in this sweep."""
        times = self._times.get(name)
        return times is None or self._sweeps % times.every == 0

    def pace(self, name: str) -> None:
        """This kind may be left out of a sweep, as its last answer does for a while."""
        self._paced.add(name)

    def begin(self, now: datetime, gpus: int) -> None:
        """A sweep over so many GPUs begins."""
        interval_s = (now - self._begun_at).total_seconds() if self._begun_at else 0.0
        self._begun_at = now
        self._sweeps += 1
        if self._sweeps % JUDGED_EVERY != 1:
            return
        for name in self._paced if interval_s > 0 else ():
            takes = _median(self._times[name].newest) * gpus
            wanted = math.ceil(takes / (SHARE * interval_s))
            self._times[name].every = min(MOST_SKIPPED, max(1, wanted))
        self.costs = tuple(_cost(name, times) for name, times in sorted(self._times.items()))

    def resume(self, costs: Iterable[CallCost]) -> None:
        """Count on from what another process had counted."""
        for cost in costs:
            times = self._times.setdefault(cost.call, _Times())
            times.count += cost.count
            times.errors += cost.errors


def _median(times: Iterable[float]) -> float:
    ordered = sorted(times)
    return ordered[len(ordered) // 2] if ordered else 0.0


def _cost(name: str, times: _Times) -> CallCost:
    ordered = sorted(times.newest)
    at = len(ordered)
    return CallCost(
        call=name,
        count=times.count,
        errors=times.errors,
        every=times.every,
        p50_ms=round(1e3 * ordered[at // 2], 4) if at else 0.0,
        p99_ms=round(1e3 * ordered[min(at - 1, math.ceil(0.99 * at) - 1)], 4) if at else 0.0,
    )
