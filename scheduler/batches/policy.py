"""Policy: how many jobs of a batch wait at a time, and when it is expected to end."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

# Jobs of a batch that wait: enough that each GPU that frees up finds one.
LEAST_WAITING, MOST_WAITING = 4, 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How far a batch has come. work_s: run time of the `ended` items together."""

    queued: int
    waiting: int
    running: int
    ended: int
    work_s: float
    estimate_s: float | None = None


def jobs_to_make(pace: Pace, gpus: int, room: int | None) -> int:
    """How many items become jobs now. room: places in the owner's queue; None = no limit."""
    wanted = min(MOST_WAITING, max(LEAST_WAITING, gpus + 2)) - pace.waiting
    return max(0, min(wanted, pace.queued, wanted if room is None else room))


def expected_end(pace: Pace, now: datetime) -> datetime | None:
    """From the mean run time of its items. None: no item runs, or no run time is known."""
    each = pace.work_s / pace.ended if pace.ended else pace.estimate_s
    if not pace.running or each is None:
        return None
    remaining = pace.queued + pace.waiting + pace.running / 2
    return now + timedelta(seconds=remaining * each / pace.running)
