"""Rows: the moves of a job that the loop makes, each a compare-and-set.

False = somebody else moved it. The caller holds the transaction. Doors submit and cancel
through store.py.
"""

from __future__ import annotations

import secrets
from dataclasses import replace
from datetime import datetime, timedelta

from django.db.models import OuterRef, Subquery

from monitor import events, store, tallies
from monitor.readings import ClaimFact
from scheduler import dependencies
from scheduler.attempts import Ending as Ending
from scheduler.attempts import Identity as Identity
from scheduler.jobs import TRANSITIONS, JobState, Outcome, check_transition
from scheduler.models import Attempt, Job, YieldRequest
from scheduler.plans import Placement
from scheduler.policy.retrying import Fate

# Where a job is that has an open attempt: from each of them it may end.
PLACED = tuple(
    s for s in JobState if s is not JobState.QUEUED and JobState.FINISHED in TRANSITIONS[s]
)

_TRIES = Subquery(
    Attempt.objects.filter(job=OuterRef("pk")).order_by("-number").values("number")[:1]
)


def place(placement: Placement, boot_id: str, now: datetime) -> Attempt | None:
    """Commit a waiting job to its GPUs; None when it was cancelled meanwhile."""
    if not _move(placement.job_id, JobState.QUEUED, JobState.STARTING, blockers=[]):
        return None
    jobs = Job.objects.select_related("owner").annotate(tries=_TRIES)
    job = jobs.get(pk=placement.job_id)
    attempt = Attempt.objects.create(
        job=job,
        number=(job.tries or 0) + 1,
        host=placement.host,
        gpu_uuids=list(placement.gpu_uuids),
        nonce=secrets.token_hex(16),
        boot_id=boot_id,
        placed_at=now,
    )
    for uuid in placement.gpu_uuids:
        store.open_claim(_claim(job, uuid), placement.host, now)
    return attempt


def started(attempt: Attempt, identity: Identity) -> bool:
    """Note who the attempt is. A job that is being stopped stays so."""
    known = Attempt.objects.filter(pk=attempt.pk, ended_at=None, pid=None).update(
        account=identity.account,
        runner_pid=identity.runner_pid,
        runner_start_ticks=identity.runner_start_ticks,
        pid=identity.pid,
        start_ticks=identity.start_ticks,
        started_at=identity.started_at,
    )
    if not known:
        return False
    started_at = identity.started_at
    if _move(attempt.job_id, JobState.STARTING, JobState.RUNNING, started_at=started_at):
        _tell("JOB_STARTED", attempt, f"{_title(attempt)} started", started_at)
    else:
        Job.objects.filter(pk=attempt.job_id).update(started_at=started_at)
    if attempt.gpu_uuids:
        store.set_leader(str(attempt.job_id), identity.pid, identity.start_ticks)
    return True


def stopping(attempt: Attempt, problem: str, now: datetime) -> bool:
    """The job is to end though nobody asked for it; `problem` says why."""
    for state in (JobState.RUNNING, JobState.STARTING):
        if _move(attempt.job_id, state, JobState.STOPPING, problem=problem):
            _tell("JOB_STOPPING", attempt, f"{_title(attempt)}: {problem}", now, "warning")
            return True
    return False


def ended(attempt: Attempt, ending: Ending, now: datetime) -> bool:
    """The attempt is over, and its job with it."""
    if not _end_attempt(attempt, ending, ending.outcome.value):
        return False
    _conclude(attempt, ending, now)
    return True


def _conclude(attempt: Attempt, ending: Ending, now: datetime) -> None:
    _finish(
        attempt,
        outcome=ending.outcome.value,
        exit_code=ending.exit_code,
        signal=ending.signal,
        problem=ending.problem,
        ended_at=ending.ended_at,
    )
    _free_gpus(attempt, now)
    _tell_left(attempt, ending)
    if ending.outcome is not Outcome.SUCCEEDED:
        dependencies.skip_dependents(attempt.job_id, ending.outcome, now)
    tallies.add(tallies.FINISHED_JOBS, ending.outcome.value)
    severity = "info" if ending.outcome in (Outcome.SUCCEEDED, Outcome.CANCELLED) else "warning"
    _tell("JOB_FINISHED", attempt, f"{_title(attempt)} {_words(ending)}", ending.ended_at, severity)


def requeued(
    attempt: Attempt,
    problem: str,
    now: datetime,
    *,
    outcome: str = "",
    pause: timedelta | None = None,
    tells: bool = True,
) -> bool:
    """The attempt never ran: its job waits again. False when it is being stopped."""
    paused = {} if pause is None else {"retry_at": now + pause}
    if not _move(attempt.job_id, JobState.STARTING, JobState.QUEUED, **paused):
        return False
    _end_attempt(attempt, Ending(outcome=Outcome.LOST, ended_at=now, problem=problem), outcome)
    _free_gpus(attempt, now)
    if tells:
        _tell("JOB_REQUEUED", attempt, f"{_title(attempt)} waits again: {problem}", now, "warning")
    return True


def with_fate(ending: Ending, fate: Fate) -> Ending:
    """The ending of the attempt, in the light of what becomes of its job."""
    problem = ending.problem or ("" if fate.again else fate.text)
    return replace(ending, outcome=fate.outcome, problem=problem)


def again(attempt: Attempt, ending: Ending, fate: Fate, now: datetime) -> bool:
    """The attempt is over, and its job waits to run again; unless it was cancelled meanwhile."""
    if not _end_attempt(attempt, ending, ending.outcome.value):
        return False
    placed = Job.objects.filter(pk=attempt.job_id, state__in=[state.value for state in PLACED])
    moved = placed.filter(cancel_requested_at=None).update(
        state=JobState.QUEUED.value,
        started_at=None,
        problem="",
        failures=fate.failures,
        requeues=fate.requeues,
        gpu_memory_bytes=fate.memory_bytes,
        retry_at=None if fate.pause is None else ending.ended_at + fate.pause,
        held=fate.held,
        held_by="",
        may_preempt_at=_may_preempt_at(attempt, ending, fate),
    )
    if not moved:
        _conclude(attempt, replace(ending, outcome=Outcome.CANCELLED), now)
        return False
    _free_gpus(attempt, now)
    _tell_left(attempt, ending)
    why = f"{_title(attempt)} waits again: {fate.held or fate.text}"
    _tell("JOB_REQUEUED", attempt, why, ending.ended_at, "warning")
    return True


def _may_preempt_at(attempt: Attempt, ending: Ending, fate: Fate) -> datetime | None:
    """Who made room for another does not come back on its heels."""
    asked = attempt.asked_to_leave
    if asked is None or asked.kind != YieldRequest.Kind.PREEMPTION:
        return attempt.job.may_preempt_at
    return ending.ended_at + fate.cool_down


def _tell_left(attempt: Attempt, ending: Ending) -> None:
    """It made room for another job, or for its GPU's owner."""
    asked = attempt.asked_to_leave
    if asked is None or ending.outcome is not Outcome.PREEMPTED:
        return
    text = f"{_title(attempt)} has left its GPU: {asked.text}"
    if asked.kind == YieldRequest.Kind.PREEMPTION:
        _tell("JOB_PREEMPTED", attempt, text, ending.ended_at, "warning")
    else:
        _tell("JOB_EVICTED", attempt, text, ending.ended_at, "warning")


def _move(job_id: int, old: JobState, new: JobState, **fields: object) -> bool:
    check_transition(old, new)
    jobs = Job.objects.filter(pk=job_id, state=old.value)
    return bool(jobs.update(state=new.value, **fields))


def _finish(attempt: Attempt, **fields: object) -> None:
    """From whichever state it is in. Its attempt was open, so one of these it must be."""
    placed = Job.objects.filter(pk=attempt.job_id, state__in=[state.value for state in PLACED])
    if not placed.update(state=JobState.FINISHED.value, **fields):
        raise RuntimeError(f"job {attempt.job_id} had an open attempt but had ended")


def _free_gpus(attempt: Attempt, now: datetime) -> None:
    if attempt.gpu_uuids:
        store.close_claims(str(attempt.job_id), now)


def _end_attempt(attempt: Attempt, ending: Ending, outcome: str) -> bool:
    still_open = Attempt.objects.filter(pk=attempt.pk, ended_at=None)
    return bool(
        still_open.update(
            ended_at=ending.ended_at,
            outcome=outcome,
            exit_code=ending.exit_code,
            signal=ending.signal,
            problem=ending.problem,
            cpu_s=ending.cpu_s,
            peak_memory_bytes=ending.peak_memory_bytes,
            log_bytes=ending.log_bytes,
        )
    )


def _claim(job: Job, gpu_uuid: str) -> ClaimFact:
    return ClaimFact(
        job_ref=str(job.pk),
        gpu_uuid=gpu_uuid,
        owner=job.owner.username,
        memory_bytes=job.gpu_memory_bytes,
        exclusive=job.exclusive,
    )


def _title(attempt: Attempt) -> str:
    return f"Job {attempt.job_id} ({attempt.job.name})"


def _words(ending: Ending) -> str:
    if ending.outcome is Outcome.FAILED and ending.signal is not None:
        return f"failed with signal {ending.signal}"
    if ending.outcome is Outcome.FAILED and ending.exit_code is not None:
        return f"failed with exit code {ending.exit_code}"
    return {Outcome.CANCELLED: "was cancelled", Outcome.LOST: "was lost"}.get(
        ending.outcome, ending.outcome.value.replace("_", " ")
    )


def _tell(kind: str, attempt: Attempt, text: str, at: datetime, severity: str = "info") -> None:
    events.add(
        kind,
        text,
        now=at,
        severity=severity,
        host=attempt.host,
        job_ref=str(attempt.job_id),
        owner=attempt.job.owner.username,
    )
