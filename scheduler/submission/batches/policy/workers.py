"""Policy: how many workers a batch has, their items at hand, and what an answer means."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from scheduler.facts.batches import Answer, ItemState
from scheduler.facts.jobs import Outcome

# The scheduler may be away for so long before workers wait for items.
AT_HAND_S = 5.0
# Of each worker; the first while no item has ended yet.
LEAST_AT_HAND, FIRST_AT_HAND, MOST_AT_HAND = 1, 4, 100
# Of items without a GPU.
MOST_WITHOUT_GPU = 4
# A batch fails after so many workers in a row that never took an item.
MOST_FAILED_BOOTS = 3
NO_WORKER = "Its workers ended {times} times before they were ready; see the log of job {job}."
NEVER_LOADED = "Its workers ended before they were ready."
CANCELLED = "Its worker was cancelled."
DIED = "Its worker ended before it had answered."


def items_at_hand(workers: int, ended: int, work_s: float) -> int:
    """How many items the workers of a host have at hand that none of them has taken."""
    if not ended:
        return FIRST_AT_HAND * workers
    each_s = max(0.001, work_s / ended)
    return workers * min(MOST_AT_HAND, max(LEAST_AT_HAND, math.ceil(AT_HAND_S / each_s)))


def workers_to_make(have: int, free: int, unfinished: int, places: int, room: int | None) -> int:
    """free: items that no worker has taken. places: for workers. room: in the owner's queue."""
    wanted = min(places, unfinished) - have if free else 0
    return max(0, wanted if room is None else min(wanted, room))


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The next status of an item. failed: the try counts as a failure."""

    status: ItemState
    output: Any = None
    error: str = ""
    failed: bool = False
    took_s: float = 0.0


def decide(answer: Answer, ending: str | None, failures: int, retries: int) -> Decision:
    """Of an item that a worker has taken.

    ending: the outcome of the worker's attempt, "" = unknown; None: it has not ended. failures: of
    earlier tries.
    """
    if answer.returned:
        return Decision(status=ItemState.QUEUED)
    if answer.ended is not None and answer.error is None:
        return Decision(status=ItemState.COMPLETE, output=answer.output, took_s=answer.took_s)
    error = answer.error
    if answer.ended is None:
        if ending is None:
            return Decision(status=ItemState.RUNNING)
        if ending == Outcome.CANCELLED.value:
            return Decision(status=ItemState.FAILED, error=CANCELLED, failed=True)
        if ending not in (Outcome.FAILED.value, Outcome.TIMED_OUT.value):
            # It had to leave, or the machine lost it.
            return Decision(status=ItemState.QUEUED)
        error = DIED
    again = failures < retries
    return Decision(
        status=ItemState.QUEUED if again else ItemState.FAILED,
        error=error or "",
        failed=True,
        took_s=answer.took_s,
    )


def is_turn_over(started_at: datetime | None, now: datetime, minutes: float) -> bool:
    """Whether a worker leaves its GPU to waiting jobs of other users, after its current item."""
    return minutes > 0 and started_at is not None and now - started_at >= timedelta(minutes=minutes)
