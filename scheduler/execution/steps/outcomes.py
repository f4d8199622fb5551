"""Record how an attempt started and ended, and whether its job ends or is requeued."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import takewhile

from monitor.facts.readings import Health
from monitor.gpus.rows import snapshot as snapshots
from monitor.thresholds import rows as thresholds
from scheduler.execution.policy import (
    LONGEST_UNKNOWN_ACCOUNT,
    MAX_STARTS,
    BoundsPolicy,
    backoff_after,
    lower_limit,
    outcome_of,
    pause_after,
)
from scheduler.execution.steps import gpu_closures
from scheduler.facts.jobs import AttemptEnding, Identity, Outcome, read_result
from scheduler.facts.units import size
from scheduler.jobs.policy import (
    MEMORY_PROBLEMS,
    AttemptEnd,
    FailureCause,
    RetryDecision,
    RetryHistory,
    decide,
    reports_gpu_memory,
)
from scheduler.jobs.rows import relations, transitions
from scheduler.models import Attempt, Job
from scheduler.runner.attempt_files import AttemptFiles
from scheduler.runner.spec import Result

MOST_REFUSALS = 20
# More than there are within LONGEST_UNKNOWN_ACCOUNT.
MOST_LOOKUPS = 100
HOST_DOWN = "Its host was confirmed down."
UNSTARTED = "No runner took it up."
UNWANTED = "Its GPU was wanted before it began."


def record_start(attempt: Attempt, files: AttemptFiles, now: datetime) -> None:
    """Store the processes of the attempt, or the guardian that has replaced its runner."""
    _record_identity(attempt, files)
    if files.runner is not None and attempt.pid is not None:
        transitions.record_guardian(attempt, *files.runner, now)


def _record_identity(attempt: Attempt, files: AttemptFiles) -> None:
    started = files.started
    if started is None or attempt.pid is not None:
        return
    identity = Identity(
        # The account of an engine's task is known; that account has written the report.
        account=attempt.account or started.account,
        runner_pid=started.runner_pid,
        runner_start_ticks=started.runner_start_ticks,
        pid=started.pid,
        start_ticks=started.start_ticks,
        started_at=_time(started.started_at),
    )
    transitions.record_start(attempt, identity)


def record_end(
    attempt: Attempt,
    files: AttemptFiles,
    tail: bytes,
    now: datetime,
    *,
    has_saved: bool = False,
    given: bytes = b"",
) -> None:
    """Store the attempt's result, and end or requeue its job.

    `tail` is the end of its log. `has_saved`: its checkpoint folder is not empty. `given`: what the
    job wrote to its result file.
    """
    result = files.result
    if result is None:
        return
    if result.refused is not None:
        _record_refusal(attempt, result.refused, now)
        return
    _record_identity(attempt, files)
    is_cancelled = attempt.job.cancel_requested_at is not None
    outcome, reason = outcome_of(
        exit_code=result.exit_code, stopped=result.stopped, cancel_requested=is_cancelled
    )
    cause = _cause(attempt, result, tail)
    ending = AttemptEnding(
        outcome=outcome,
        ended_at=_time(result.ended_at),
        exit_code=result.exit_code,
        signal=result.signal,
        problem=result.problem or reason or _problem_text(outcome, cause, attempt.job),
        cpu_s=result.cpu_s,
        peak_memory_bytes=result.peak_memory_bytes,
        log_bytes=result.log_bytes,
    )
    _settle(attempt, ending, cause, now, yielded=result.yielded, has_saved=has_saved)
    if outcome is Outcome.FAILED:
        relations.hold_alike(attempt.job, tail, now)
    if (output := read_result(given)) is not None:
        Job.objects.filter(pk=attempt.job_id).update(result=output)


def record_unstarted(attempt: Attempt, now: datetime) -> None:
    """End an attempt that never ran: requeue its job, up to MAX_STARTS times, unless cancelled."""
    if attempt.job.cancel_requested_at is not None:
        transitions.record_end(attempt, AttemptEnding(outcome=Outcome.CANCELLED, ended_at=now), now)
    elif attempt.asked_to_leave is not None:
        transitions.return_to_queue(attempt, UNWANTED, now, outcome=Outcome.PREEMPTED.value)
    elif _unstarted(attempt) >= MAX_STARTS:
        problem = f"It could not be started {MAX_STARTS} times. {UNSTARTED}"
        ending = AttemptEnding(outcome=Outcome.FAILED, ended_at=now, problem=problem)
        transitions.record_end(attempt, ending, now)
    else:
        transitions.return_to_queue(attempt, UNSTARTED, now)


def record_missing_account(attempt: Attempt, problem: str, now: datetime) -> None:
    """End a job that never ran because its owner has no OS account on this server."""
    is_cancelled = attempt.job.cancel_requested_at is not None
    outcome = Outcome.CANCELLED if is_cancelled else Outcome.FAILED
    transitions.record_end(
        attempt, AttemptEnding(outcome=outcome, ended_at=now, problem=problem), now
    )


def record_unknown_account(attempt: Attempt, problem: str, now: datetime) -> None:
    """Requeue a job that never ran, because the directory of its account is away.

    After LONGEST_UNKNOWN_ACCOUNT, the job ends as if the account were missing.
    """
    if attempt.job.cancel_requested_at is not None:
        transitions.record_end(attempt, AttemptEnding(outcome=Outcome.CANCELLED, ended_at=now), now)
    elif attempt.asked_to_leave is not None:
        transitions.return_to_queue(attempt, UNWANTED, now, outcome=Outcome.PREEMPTED.value)
    else:
        earlier = _lookups(attempt, problem)
        if now - (earlier[-1] if earlier else now) >= LONGEST_UNKNOWN_ACCOUNT:
            hours = LONGEST_UNKNOWN_ACCOUNT.total_seconds() / 3600
            record_missing_account(attempt, f"{problem} It was tried for {hours:g} h.", now)
            return
        pause = pause_after(len(earlier) + 1)
        transitions.return_to_queue(attempt, problem, now, pause=pause, reports=not earlier)


def _record_refusal(attempt: Attempt, reason: str, now: datetime) -> None:
    """Requeue a job whose GPUs are locked by another program; this does not use up a retry."""
    if attempt.job.cancel_requested_at is not None:
        transitions.record_end(attempt, AttemptEnding(outcome=Outcome.CANCELLED, ended_at=now), now)
    elif attempt.asked_to_leave is not None:
        transitions.return_to_queue(attempt, UNWANTED, now, outcome=Outcome.PREEMPTED.value)
    else:
        gpu_closures.record_refusal(attempt.host, attempt.gpu_uuids, reason, now)
        earlier = _refusals(attempt)
        pause, is_new = backoff_after(len(earlier) + 1), earlier[:1] != [reason]
        transitions.return_to_queue(attempt, reason, now, pause=pause, reports=is_new)


def record_lost(
    attempt: Attempt,
    files: AttemptFiles,
    problem: str,
    now: datetime,
    *,
    has_saved: bool = False,
    seen_at: datetime | None = None,
) -> None:
    """End an attempt whose exit status is unknown. seen_at: when it was last known to run, None =
    until now."""
    _record_identity(attempt, files)
    is_cancelled = attempt.job.cancel_requested_at is not None
    outcome = Outcome.CANCELLED if is_cancelled else Outcome.LOST
    ended_at = now if seen_at is None else max(seen_at, attempt.placed_at)
    ending = AttemptEnding(outcome=outcome, ended_at=ended_at, problem=problem)
    _settle(attempt, ending, FailureCause.MACHINE, now, has_saved=has_saved)


def record_host_down(attempt: Attempt, now: datetime, seen_at: datetime | None) -> None:
    """End an attempt of a host that is confirmed down; its job waits again for any host.

    seen_at: when the host stored its newest reading.

    If the host returns, it ends the processes that are left there.
    """
    is_cancelled = attempt.job.cancel_requested_at is not None
    outcome = Outcome.CANCELLED if is_cancelled else Outcome.LOST
    ended_at = max(seen_at or now, attempt.placed_at)
    ending = AttemptEnding(outcome=outcome, ended_at=ended_at, problem=HOST_DOWN)
    _settle(attempt, ending, FailureCause.MACHINE, now, has_saved=False)
    if Attempt.objects.filter(pk=attempt.pk, ended_at=ended_at).update(abandoned=True):
        Job.objects.filter(pk=attempt.job_id).update(home="")


def record_without_result(
    attempt: Attempt, files: AttemptFiles, outcome: Outcome, problem: str, now: datetime
) -> None:
    """End an attempt whose exit status is unknown, but another engine says how it ended."""
    _record_identity(attempt, files)
    is_cancelled = attempt.job.cancel_requested_at is not None
    ending = AttemptEnding(
        outcome=Outcome.CANCELLED if is_cancelled else outcome, ended_at=now, problem=problem
    )
    _settle(attempt, ending, FailureCause.OWN, now, has_saved=False)


def _settle(
    attempt: Attempt,
    ending: AttemptEnding,
    cause: FailureCause,
    now: datetime,
    *,
    yielded: bool = False,
    has_saved: bool,
) -> None:
    if ending.outcome is Outcome.SUCCEEDED:
        # The most frequent case. There is nothing to decide.
        transitions.record_end(attempt, ending, now)
        return
    decision = _decide(attempt, ending, cause, yielded, has_saved)
    transitions.record_end(attempt, ending, now, decision)


def _decide(
    attempt: Attempt, ending: AttemptEnding, cause: FailureCause, yielded: bool, has_saved: bool
) -> RetryDecision:
    job, request = attempt.job, getattr(attempt, "yield_request", None)
    in_force = thresholds.ThresholdsInForce()
    end = AttemptEnd(
        outcome=ending.outcome,
        exit_code=ending.exit_code,
        signal=ending.signal,
        cause=cause,
        yielded=yielded and request is not None,
        counts=request is None or (request.counts and request.withdrawn_at is None),
        has_saved=has_saved,
        has_delivered=attempt.items_completed > 0,
    )
    history = RetryHistory(
        job_id=job.pk,
        requeue=job.requeue,
        preemptible=job.preemptible,
        retries=job.retries,
        failures=job.failures,
        requeues=job.requeues,
        lost=_losses(attempt),
        memory_bytes=job.gpu_memory_bytes,
        host_memory_bytes=job.memory_bytes,
    )
    largest = _most_memory(attempt.host, cause, in_force.of(BoundsPolicy))
    return decide(end, history, largest)


def _losses(attempt: Attempt) -> int:
    """How often the machine lost the job since its release, and since it last completed an item."""
    lost = attempt.job.attempts.filter(outcome=Outcome.LOST.value)
    if (released_at := attempt.job.released_at) is not None:
        lost = lost.filter(placed_at__gt=released_at)
    useful = attempt.job.attempts.filter(items_completed__gt=0).order_by("-number")
    if (last := useful.values_list("number", flat=True).first()) is not None:
        lost = lost.filter(number__gt=last)
    return lost.count()


def _cause(attempt: Attempt, result: Result, tail: bytes) -> FailureCause:
    """A SIGTERM to the runner that gpucoord did not send comes from a shutdown."""
    if result.stopped == "memory":
        return FailureCause.MEMORY
    if result.exit_code == 0:
        return FailureCause.OWN
    if result.stopped == "asked" or _has_lost_gpu(attempt):
        return FailureCause.MACHINE
    if result.out_of_memory:
        return FailureCause.MEMORY
    return FailureCause.GPU_MEMORY if reports_gpu_memory(tail) else FailureCause.OWN


def _problem_text(outcome: Outcome, cause: FailureCause, job: Job) -> str:
    if outcome is not Outcome.FAILED:
        return ""
    text = MEMORY_PROBLEMS.get(cause, "")
    if cause is FailureCause.MEMORY:
        limit = lower_limit(job.memory_bytes, thresholds.current(BoundsPolicy).memory_bytes)
        return text if limit is None else f"{text} It may take {size(int(limit))} of the host's."
    return text


def _has_lost_gpu(attempt: Attempt) -> bool:
    newest = snapshots.newest(attempt.gpu_host) if attempt.gpu_uuids else None
    if newest is None:
        return False
    answering = {gpu.uuid for gpu in newest.gpus if gpu.health is not Health.LOST}
    return bool(newest.gpus) and not answering.issuperset(attempt.gpu_uuids)


def _most_memory(host: str, cause: FailureCause, bounds: BoundsPolicy) -> int | None:
    """The most that a job may declare, of a GPU or of the host; None = unknown."""
    if cause is FailureCause.GPU_MEMORY:
        return _largest_gpu(host)
    newest = snapshots.newest(host) if cause is FailureCause.MEMORY else None
    total = newest.host.memory_total_bytes if newest else None
    most = lower_limit(total, bounds.memory_bytes)
    return None if most is None else int(most)


def _largest_gpu(host: str) -> int | None:
    newest = snapshots.newest(host)
    sizes = [gpu.memory_total_bytes or 0 for gpu in newest.gpus] if newest else []
    return max(sizes, default=0) or None


def _unstarted(attempt: Attempt) -> int:
    """Number of attempts of this job that never ran, including this one."""
    return attempt.job.attempts.filter(outcome="", problem=UNSTARTED).count() + 1


def _refusals(attempt: Attempt) -> list[str]:
    """Reasons of the uninterrupted series of refusals before this attempt, newest first."""
    earlier = attempt.job.attempts.exclude(pk=attempt.pk).order_by("-number")
    rows = earlier.values_list("outcome", "problem")[:MOST_REFUSALS]
    return [reason for _, reason in takewhile(lambda row: not row[0] and row[1] != UNSTARTED, rows)]


def _lookups(attempt: Attempt, problem: str) -> list[datetime]:
    """Times of the uninterrupted series of failed lookups before this attempt, newest first."""
    account = problem.partition(":")[0]
    earlier = attempt.job.attempts.exclude(pk=attempt.pk).order_by("-number")
    rows = earlier.values_list("outcome", "problem", "placed_at")[:MOST_LOOKUPS]
    series = takewhile(lambda row: not row[0] and row[1].startswith(f"{account}:"), rows)
    return [at for _, _, at in series]


def _time(epoch_s: float) -> datetime:
    return datetime.fromtimestamp(epoch_s, UTC)
