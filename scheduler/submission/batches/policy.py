"""Policy: how many jobs of a batch wait at a time, when it ends, and its exclusive mode."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from msgspec import Struct

from monitor.facts.thresholds import threshold
from scheduler.facts.jobs import Outcome, QueuedJob, RunTime
from scheduler.facts.scripts import Answer, BatchWork, ExclusiveFact, ExclusiveStep, ItemState

# Jobs of a batch that wait: enough that each GPU that frees up finds one.
LEAST_WAITING, MOST_WAITING = 4, 64
# Exclusive mode: time between the announcement and the end of new prompts on the GPUs of the batch,
# and time after which models are unloaded even if prompts still run.
ANNOUNCED_FOR, DRAINED_FOR = timedelta(seconds=10), timedelta(minutes=10)
# How much longer than others an item takes in one of ten cases.
SLOWER_PART = 0.3


class Pace(Struct, frozen=True, kw_only=True):
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


def coming(like: QueuedJob, items: int, most: int, numbers: Iterator[int]) -> list[QueuedJob]:
    """The jobs of so many queued items, for forecasts: like a waiting job of their batch, after it.

    At most `most` of them: each of these stands for several items in a row. numbers: their ids.
    """
    most = min(items, most)
    jobs = []
    for n in range(most):
        in_a_row = items // most + (n < items % most)
        expected = like.expected and like.expected.of(in_a_row)
        jobs.append(replace(like, id=next(numbers), expected=expected))
    return jobs


def worker_run_time(items: int, workers: int, each: timedelta) -> RunTime:
    """How long one of so many workers takes for its part of the unfinished items."""
    return RunTime(each, each * (1 + SLOWER_PART)).of(math.ceil(items / max(1, workers)))


def is_due(work: BatchWork, gpus: int, *, hands_out: bool, has_room: Callable[[], bool]) -> bool:
    """Whether a pass changes the batch: takes over results, makes jobs, or ends it.

    has_room: in the owner's queue; called only if that decides.
    """
    if work.has_changed or not (work.has_queued or work.waiting or work.running):
        return True
    pace = Pace(
        queued=1 if work.has_queued else 0,
        waiting=work.waiting,
        running=work.running,
        ended=0,
        work_s=0.0,
    )
    return hands_out and jobs_to_make(pace, gpus, None) > 0 and has_room()


def tenth(ended: int, total: int) -> int:
    """How many tenths of the items have ended; of a small batch, none until its end."""
    return 10 * ended // total if total >= 10 else 0


def expected_end(pace: Pace, now: datetime) -> datetime | None:
    """From the mean run time of its items. None: no item runs, or no run time is known."""
    each = pace.work_s / pace.ended if pace.ended else pace.estimate_s
    if not pace.running or each is None:
        return None
    remaining = pace.queued + pace.waiting + pace.running / 2
    return now + timedelta(seconds=remaining * each / pace.running)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPolicy:
    """Exclusive mode: models leave their GPUs for a batch, and are loaded again after it."""

    # fmt: off
    auto_exclusive_threshold: int = threshold(50, "Exclusive mode from", unit="items", ge=0,
        le=1_000_000, help="A batch with at least this number of items uses it if its owner has "
             "the right. 0 = only on request.")
    reload_llms_after_batch: bool = threshold(True, "Load models again after a batch",
        "They load one after another. Otherwise the next prompt loads its model.")
    worker_minutes: float = threshold(10.0, "Turn of a worker", unit="min", ge=0, le=10_080,
        help="A worker that has run for longer leaves its GPU after its current item if a job of "
             "another user waits for a GPU. Not in exclusive mode. 0 = it stays.")
    # fmt: on


# The endpoint for models reads the rows within this time, and then sends no new prompts.
PROMPTS_STOP_WITHIN = timedelta(seconds=3)
_S = ExclusiveStep


def mode_of(items: int, requested: str | None, *, gpus: int, may: bool, policy: BatchPolicy) -> str:
    """shared or exclusive. An explicit mode wins; the caller has checked that it is allowed."""
    if requested is not None:
        return requested
    threshold_ = policy.auto_exclusive_threshold
    is_long = threshold_ > 0 and items >= threshold_
    return "exclusive" if is_long and may and gpus > 0 else "shared"


def next_step(fact: ExclusiveFact, now: datetime) -> ExclusiveStep | None:
    """The step that follows now; None: the current one goes on. Depends on nothing but rows."""
    leaves = fact.is_over or fact.is_stopped
    took = now - fact.since
    if fact.step is _S.WAITING:
        starts = fact.is_next and fact.gpus > 0
        return _S.ENDED if leaves else _S.ANNOUNCED if starts else None
    if fact.step is _S.ANNOUNCED:
        is_due = took >= ANNOUNCED_FOR
        return _S.ENDED if leaves else _S.DRAINING if is_due else None
    if fact.step is _S.DRAINING:
        return _S.ENDED if leaves else _S.UNLOADING if _is_drained(fact, took) else None
    if fact.step is _S.UNLOADING:
        return _S.RELOADING if leaves else None if fact.loaded else _S.WORKING
    if fact.step is _S.WORKING:
        return _S.RELOADING if leaves else None
    return _S.ENDED if not (fact.reloads or fact.boots) else None


def _is_drained(fact: ExclusiveFact, took: timedelta) -> bool:
    if not fact.loaded or took >= DRAINED_FOR:
        return True
    return not fact.in_flight and took >= PROMPTS_STOP_WITHIN


def hands_out(step: ExclusiveStep | None, *, is_stopped: bool, waits_for_batch: bool) -> bool:
    """Whether items become jobs in this step. None: the batch shares GPUs.

    A batch that waits for GPUs, and not for another batch, shares them meanwhile.
    """
    if step is _S.WAITING:
        return not waits_for_batch
    return step in (None, _S.WORKING, _S.ENDED) or (step is _S.RELOADING and is_stopped)


# How many workers a batch has, their items at hand, and what an answer means.

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


class Decision(Struct, frozen=True, kw_only=True):
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
        if not answer.began:
            # It is only reserved for a worker, which has another one now.
            return Decision(status=ItemState.ASSIGNED if ending is None else ItemState.QUEUED)
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
