"""Rows: what an attempt's end means for its job: it is over, or it waits to run again."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import takewhile

from monitor import policies, store
from monitor.readings import Health
from scheduler import holding, locked, transitions
from scheduler.jobs import Outcome
from scheduler.models import Attempt, Job
from scheduler.policy.bounds import BoundsPolicy, least
from scheduler.policy.following import MOST_STARTS, outcome_of, pause_after
from scheduler.policy.preemption import PreemptionPolicy
from scheduler.policy.retrying import (
    SAYS,
    Cause,
    End,
    Fate,
    Past,
    RetryPolicy,
    fate,
    tells_of_gpu_memory,
)
from scheduler.runner.attempts import Look
from scheduler.runner.spec import Result
from scheduler.transitions import Ending, Identity
from scheduler.units import size

MOST_REFUSALS = 20
UNSTARTED = "No runner took it up."
UNWANTED = "Its GPU was wanted before it began."


def record(attempt: Attempt, look: Look) -> None:
    """Write down which processes it is, if that is not done."""
    started = look.started
    if started is None or attempt.pid is not None:
        return
    identity = Identity(
        account=started.account,
        runner_pid=started.runner_pid,
        runner_start_ticks=started.runner_start_ticks,
        pid=started.pid,
        start_ticks=started.start_ticks,
        started_at=_time(started.started_at),
    )
    transitions.started(attempt, identity)


def end(
    attempt: Attempt, look: Look, tail: bytes, now: datetime, *, has_saved: bool = False
) -> None:
    """It has a result; `tail` is the end of its log. has_saved: its checkpoint folder is used."""
    result = look.result
    if result is None:
        return
    if result.refused is not None:
        _end_refused(attempt, result.refused, now)
        return
    record(attempt, look)
    is_cancelled = attempt.job.cancel_requested_at is not None
    outcome, why = outcome_of(
        exit_code=result.exit_code, stopped=result.stopped, cancel_requested=is_cancelled
    )
    cause = _cause(attempt, result, tail)
    ending = Ending(
        outcome=outcome,
        ended_at=_time(result.ended_at),
        exit_code=result.exit_code,
        signal=result.signal,
        problem=result.problem or why or _says(outcome, cause, attempt.job),
        cpu_s=result.cpu_s,
        peak_memory_bytes=result.peak_memory_bytes,
        log_bytes=result.log_bytes,
    )
    _settle(attempt, ending, cause, now, yielded=result.yielded, has_saved=has_saved)


def end_unstarted(attempt: Attempt, now: datetime) -> None:
    """It is certain that nothing of it ran: cancelled, or back into the queue, within reason."""
    if attempt.job.cancel_requested_at is not None:
        transitions.ended(attempt, Ending(outcome=Outcome.CANCELLED, ended_at=now), now)
    elif attempt.asked_to_leave is not None:
        transitions.requeued(attempt, UNWANTED, now, outcome=Outcome.PREEMPTED.value)
    elif _unstarted(attempt) >= MOST_STARTS:
        problem = f"It could not be started {MOST_STARTS} times. {UNSTARTED}"
        ending = Ending(outcome=Outcome.FAILED, ended_at=now, problem=problem)
        transitions.ended(attempt, ending, now)
    else:
        transitions.requeued(attempt, UNSTARTED, now)


def _end_refused(attempt: Attempt, why: str, now: datetime) -> None:
    """Somebody else holds a lock of its GPUs: that is no fault of the job, however often."""
    if attempt.job.cancel_requested_at is not None:
        transitions.ended(attempt, Ending(outcome=Outcome.CANCELLED, ended_at=now), now)
    elif attempt.asked_to_leave is not None:
        transitions.requeued(attempt, UNWANTED, now, outcome=Outcome.PREEMPTED.value)
    else:
        locked.remember(attempt.gpu_uuids, why, now)
        before = _refusals(attempt)
        pause, is_new = pause_after(len(before) + 1), before[:1] != [why]
        transitions.requeued(attempt, why, now, pause=pause, tells=is_new)


def lose(
    attempt: Attempt, look: Look, problem: str, now: datetime, *, has_saved: bool = False
) -> None:
    """Nobody can tell how it ended."""
    record(attempt, look)
    is_cancelled = attempt.job.cancel_requested_at is not None
    outcome = Outcome.CANCELLED if is_cancelled else Outcome.LOST
    ending = Ending(outcome=outcome, ended_at=now, problem=problem)
    _settle(attempt, ending, Cause.MACHINE, now, has_saved=has_saved)


def _settle(
    attempt: Attempt,
    ending: Ending,
    cause: Cause,
    now: datetime,
    *,
    yielded: bool = False,
    has_saved: bool,
) -> None:
    if ending.outcome is Outcome.SUCCEEDED:
        # By far the most frequent, and nothing is to be decided.
        transitions.ended(attempt, ending, now)
        return
    decided = _fate(attempt, ending, cause, yielded, has_saved)
    ending = transitions.with_fate(ending, decided)
    if decided.again:
        transitions.again(attempt, ending, decided, now)
    else:
        transitions.ended(attempt, ending, now)


def _fate(attempt: Attempt, ending: Ending, cause: Cause, yielded: bool, has_saved: bool) -> Fate:
    job, asked = attempt.job, getattr(attempt, "yield_request", None)
    found = policies.InForce()
    how = End(
        outcome=ending.outcome,
        exit_code=ending.exit_code,
        cause=cause,
        yielded=yielded and asked is not None,
        counts=asked is None or (asked.counts and asked.withdrawn_at is None),
        has_saved=has_saved,
    )
    past = Past(
        job_id=job.pk,
        requeue=job.requeue,
        preemptible=job.preemptible,
        retries=job.retries,
        failures=job.failures,
        requeues=job.requeues,
        lost=_losses(attempt),
        memory_bytes=job.gpu_memory_bytes,
    )
    largest = _largest_gpu(attempt.host) if cause is Cause.GPU_MEMORY else None
    return fate(how, past, found.of(PreemptionPolicy), found.of(RetryPolicy), largest)


def _losses(attempt: Attempt) -> int:
    """How often the machine has lost the job since a person last let it go."""
    lost = attempt.job.attempts.filter(outcome=Outcome.LOST.value)
    released_at = holding.released_at(attempt.job_id)
    return (lost if released_at is None else lost.filter(placed_at__gt=released_at)).count()


def _cause(attempt: Attempt, result: Result, tail: bytes) -> Cause:
    """A stop that nobody here asked for is a shutdown's."""
    if result.exit_code == 0:
        return Cause.OWN
    if result.stopped == "asked" or _has_lost_gpu(attempt):
        return Cause.MACHINE
    if result.out_of_memory:
        return Cause.MEMORY
    return Cause.GPU_MEMORY if tells_of_gpu_memory(tail) else Cause.OWN


def _says(outcome: Outcome, cause: Cause, job: Job) -> str:
    if outcome is not Outcome.FAILED:
        return ""
    says = SAYS.get(cause, "")
    if cause is Cause.MEMORY:
        most = least(job.memory_bytes, policies.current(BoundsPolicy).memory_bytes)
        return says if most is None else f"{says} It may take {size(int(most))} of the host's."
    return says


def _has_lost_gpu(attempt: Attempt) -> bool:
    newest = store.newest(attempt.host) if attempt.gpu_uuids else None
    if newest is None:
        return False
    answering = {gpu.uuid for gpu in newest.gpus if gpu.health is not Health.LOST}
    return bool(newest.gpus) and not answering.issuperset(attempt.gpu_uuids)


def _largest_gpu(host: str) -> int | None:
    newest = store.newest(host)
    sizes = [gpu.memory_total_bytes or 0 for gpu in newest.gpus] if newest else []
    return max(sizes, default=0) or None


def _unstarted(attempt: Attempt) -> int:
    """How many attempts of this job never ran, this one too."""
    return attempt.job.attempts.filter(outcome="", problem=UNSTARTED).count() + 1


def _refusals(attempt: Attempt) -> list[str]:
    """Why runners have refused the job before, until one took it; the last first."""
    earlier = attempt.job.attempts.exclude(pk=attempt.pk).order_by("-number")
    rows = earlier.values_list("outcome", "problem")[:MOST_REFUSALS]
    return [why for _, why in takewhile(lambda row: not row[0] and row[1] != UNSTARTED, rows)]


def _time(epoch_s: float) -> datetime:
    return datetime.fromtimestamp(epoch_s, UTC)
