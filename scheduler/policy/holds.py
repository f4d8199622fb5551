"""Policy: what jobs kept of GPUs over a time, to the second, and what their start costs.

A job pays for its first hour when it starts, so that a burst of them counts at once; that hour is
then not counted again, and what is left of it is given back when the job ends sooner. So in the
long run all that counts is what was kept, be the jobs long or short.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta


@dataclass(frozen=True, slots=True)
class Hold:
    """A job's claim on a GPU, as a part of it, and from when to when (None = it goes on)."""

    owner: str
    job_ref: str
    part: float
    from_at: datetime
    until_at: datetime | None = None

    def seconds(self, since: datetime, until: datetime) -> float:
        """GPU-seconds in that time."""
        end = until if self.until_at is None else min(until, self.until_at)
        return self.part * max(0.0, (end - max(since, self.from_at)).total_seconds())

    def unpaid_seconds(self, since: datetime, until: datetime, entry_s: float) -> float:
        """The same, of what was not paid for at its start."""
        return self.seconds(max(since, self.from_at + timedelta(seconds=entry_s)), until)

    def fee(self, since: datetime, until: datetime, entry_s: float) -> float:
        """What its start costs in that time, and its early end gives back: 1 = the first hour of
        a whole GPU."""
        fee = self.part if since < self.from_at <= until else 0.0
        if self.until_at is not None and since < self.until_at <= until and entry_s > 0:
            ran = (self.until_at - self.from_at).total_seconds() / entry_s
            fee -= self.part * max(0.0, 1.0 - max(0.0, ran))
        return fee


def held_seconds(holds: Iterable[Hold], since: datetime, until: datetime) -> dict[str, float]:
    """GPU-seconds by owner."""
    return _sum((hold.owner, hold.seconds(since, until)) for hold in holds)


def unpaid_seconds(
    holds: Iterable[Hold], since: datetime, until: datetime, entry_s: float
) -> dict[str, float]:
    """GPU-seconds by owner, without what was paid for at the start."""
    return _sum((hold.owner, hold.unpaid_seconds(since, until, entry_s)) for hold in holds)


def fees(
    holds: Iterable[Hold], since: datetime, until: datetime, entry_s: float
) -> dict[str, float]:
    """By owner, for starts and early ends in that time."""
    return _sum((hold.owner, hold.fee(since, until, entry_s)) for hold in holds)


def _sum(found: Iterable[tuple[str, float]]) -> dict[str, float]:
    sums: dict[str, float] = {}
    for owner, value in found:
        if value:
            sums[owner] = sums.get(owner, 0.0) + value
    return sums
