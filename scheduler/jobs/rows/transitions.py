"""State changes of jobs and attempts by the scheduler loop, each a compare-and-set.

False means that another transaction changed the row first. The caller opens the transaction.
Submitting and cancelling are in queue.py and changes.py.
"""

from __future__ import annotations

import secrets
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from django.contrib.auth.models import User
from django.db.models import F, OuterRef, QuerySet, Subquery

from monitor.facts.accounts import ClaimFact, ClaimKind
from monitor.gpus.rows import snapshot as snapshots
from monitor.gpus.rows.hosts import LONGEST_GAP
from monitor.journal.facts import EvictionReason
from monitor.journal.rows import audit, counters, events
from monitor.runtime.rows.database import (
    MARK,
    PreparedQuery,
    compiled_once,
    insert_row,
    update_rows,
)
from monitor.runtime.rows.wakeups import wake
from scheduler.facts.jobs import (
    TRANSITIONS,
    AttemptEnding,
    Identity,
    JobState,
    Outcome,
    check_transition,
)
from scheduler.facts.plans import Placement
from scheduler.jobs.policy import RetryDecision
from scheduler.jobs.rows import relations
from scheduler.models import Attempt, Job, PlanVersion, YieldRequest

ROW_ID = 1
_VERSION = PlanVersion.objects.filter(pk=ROW_ID)


def current_version() -> int:
    """Read this before any other input of a plan."""
    rows = _rows()
    if not rows:
        PlanVersion.objects.bulk_create([PlanVersion(pk=ROW_ID)], ignore_conflicts=True)
    return rows[0].taken if rows else 0


@compiled_once
def _rows() -> QuerySet[PlanVersion]:
    return _VERSION.all()


def commit_if_current(version: int, *, has_placements: bool) -> bool:
    """Call first in the transaction that stores a plan. False: the plan is stale."""
    taken = version + int(has_placements)
    return update_rows(PlanVersion, {"pk": ROW_ID, "taken": version}, taken=taken) == 1


def lock() -> None:
    """Call first in a transaction that changes many jobs: no plan is committed until it ends."""
    if not _VERSION.update(taken=F("taken")):
        PlanVersion.objects.bulk_create([PlanVersion(pk=ROW_ID)], ignore_conflicts=True)
        _VERSION.update(taken=F("taken"))


# The sampler writes the usage of a process a few seconds after it was measured.
USE_WRITTEN_AFTER = timedelta(seconds=15)
# States of a job with an open attempt. A job can end from each of them.
PLACED = tuple(
    s for s in JobState if s is not JobState.QUEUED and JobState.FINISHED in TRANSITIONS[s]
)

_TRIES = Subquery(
    Attempt.objects.filter(job=OuterRef("pk")).order_by("-number").values("number")[:1]
)
_PLANNED = PreparedQuery(
    lambda number: Job.objects.select_related("owner").annotate(tries=_TRIES).filter(pk=number),
    MARK,
)


def place(placement: Placement, boot_id: str, now: datetime) -> Attempt | None:
    """Commit a waiting job to its GPUs.

    None when it was cancelled or held, or now requests something else, since it was planned.
    """
    if not update_rows(Job, _as_planned(placement), state=JobState.STARTING.value, blockers=[]):
        return None
    (job,) = _PLANNED.rows(placement.job_id)
    attempt = insert_row(
        Attempt(
            job=job,
            number=(getattr(job, "tries", None) or 0) + 1,
            host=placement.host,
            gpu_uuids=list(placement.gpu_uuids),
            nonce=secrets.token_hex(16),
            boot_id=boot_id,
            placed_at=now,
        )
    )
    open_claims(attempt, now)
    return attempt


def adopt(attempt: Attempt, now: datetime) -> Attempt | None:
    """Commit a waiting job that another engine has started, with its new attempt.

    None when it was cancelled meanwhile. A hold that came too late is lifted.
    """
    waiting = {"pk": attempt.job_id, "state": JobState.QUEUED.value}
    if not update_rows(Job, waiting, state=JobState.STARTING.value, blockers=[], held=""):
        return None
    attempt.placed_at = now
    insert_row(attempt)
    open_claims(attempt, now)
    return attempt


def open_claims(attempt: Attempt, now: datetime) -> None:
    """Claim the GPUs of an attempt, on the host that has them."""
    for uuid in attempt.gpu_uuids:
        snapshots.open_claim(_claim(attempt.job, uuid), attempt.gpu_host, now)


def _as_planned(placement: Placement) -> dict[str, object]:
    waiting = {"pk": placement.job_id, "state": JobState.QUEUED.value, "held": ""}
    requirement = placement.requirement
    if requirement is None:
        return waiting
    return waiting | {"gpus": requirement.gpus, "gpu_memory_bytes": requirement.memory_bytes}


def record_start(attempt: Attempt, identity: Identity) -> bool:
    """Store the processes of a started attempt. A job that is being stopped keeps that state.

    Its first process becomes the leader of its claims. In another engine, the job's account has
    reported that process, so the node checks it first (`LeaderCheck`).
    """
    is_recorded = update_rows(
        Attempt,
        {"pk": attempt.pk, "ended_at": None, "pid": None},
        account=identity.account,
        runner_pid=identity.runner_pid,
        runner_start_ticks=identity.runner_start_ticks,
        pid=identity.pid,
        start_ticks=identity.start_ticks,
        started_at=identity.started_at,
    )
    if not is_recorded:
        return False
    started_at = identity.started_at
    if _change_state(attempt.job_id, JobState.STARTING, JobState.RUNNING, started_at=started_at):
        add_attempt_event("JOB_STARTED", attempt, f"{_title(attempt)} started", started_at)
    else:
        update_rows(Job, {"pk": attempt.job_id}, started_at=started_at)
    if attempt.gpu_uuids and not attempt.engine:
        snapshots.set_leader(str(attempt.job_id), identity.pid, identity.start_ticks)
    return True


def record_guardian(attempt: Attempt, pid: int, start_ticks: int, now: datetime) -> bool:
    """Store that the guardian with this identity has replaced the runner."""
    rows = Attempt.objects.filter(pk=attempt.pk, ended_at=None).exclude(
        runner_pid=pid, runner_start_ticks=start_ticks
    )
    if not rows.update(runner_pid=pid, runner_start_ticks=start_ticks):
        return False
    text = f"The runner of {_title(attempt)} was killed; its guardian took over"
    add_attempt_event("JOB_RUNNER_REPLACED", attempt, text, now, "warning")
    return True


def mark_stopping(attempt: Attempt, problem: str, now: datetime) -> bool:
    """Mark a job that is being stopped without a cancel request; `problem` is the reason."""
    for state in (JobState.RUNNING, JobState.STARTING):
        if _change_state(attempt.job_id, state, JobState.STOPPING, problem=problem):
            add_attempt_event(
                "JOB_STOPPING", attempt, f"{_title(attempt)}: {problem}", now, "warning"
            )
            return True
    return False


def mark_orphans_stopping(attempt: Attempt, problem: str, now: datetime) -> None:
    """Store when the orphaned processes were first sent SIGTERM; later calls change nothing."""
    first = Attempt.objects.filter(pk=attempt.pk, orphans_stopping_at=None)
    if first.update(orphans_stopping_at=now):
        mark_stopping(attempt, problem, now)


def record_end(
    attempt: Attempt, ending: AttemptEnding, now: datetime, decision: RetryDecision | None = None
) -> bool:
    """End the attempt, and end its job or requeue it as `decision` says (None = end it)."""
    if decision is not None:
        problem = ending.problem or ("" if decision.again else decision.text)
        ending = replace(ending, outcome=decision.outcome, problem=problem)
    if not _end_attempt(attempt, ending, ending.outcome.value):
        return False
    if decision is not None and decision.again and _requeue(attempt, ending, decision):
        _free_gpus(attempt, ending.ended_at, now)
        _add_yield_event(attempt, ending)
        text = f"{_title(attempt)} waits again: {decision.held or decision.text}"
        add_attempt_event("JOB_REQUEUED", attempt, text, ending.ended_at, "warning")
    else:
        is_cancelled = decision is not None and decision.again
        _finish_job(
            attempt, replace(ending, outcome=Outcome.CANCELLED) if is_cancelled else ending, now
        )
    return True


def _finish_job(attempt: Attempt, ending: AttemptEnding, now: datetime) -> None:
    _finish(
        attempt,
        outcome=ending.outcome.value,
        exit_code=ending.exit_code,
        signal=ending.signal,
        problem=ending.problem,
        ended_at=ending.ended_at,
    )
    _free_gpus(attempt, ending.ended_at, now)
    _add_yield_event(attempt, ending)
    if ending.outcome is Outcome.SUCCEEDED and attempt.gpu_uuids:
        snapshots.count_task(attempt.gpu_uuids)
    if ending.outcome is not Outcome.SUCCEEDED:
        relations.skip_dependents([attempt.job_id], ending.outcome, now)
    counters.add(counters.FINISHED_JOBS, ending.outcome.value)
    severity = "info" if ending.outcome in (Outcome.SUCCEEDED, Outcome.CANCELLED) else "warning"
    add_attempt_event(
        "JOB_FINISHED",
        attempt,
        f"{_title(attempt)} {_outcome_words(ending)}",
        ending.ended_at,
        severity,
    )


def return_to_queue(
    attempt: Attempt,
    problem: str,
    now: datetime,
    *,
    outcome: str = "",
    pause: timedelta | None = None,
    reports: bool = True,
) -> bool:
    """Requeue the job of an attempt that never ran. False when the job is being stopped."""
    more = _hold_of_inactive(attempt) | ({} if pause is None else {"retry_at": now + pause})
    if not _change_state(attempt.job_id, JobState.STARTING, JobState.QUEUED, **more):
        return False
    _end_attempt(
        attempt, AttemptEnding(outcome=Outcome.LOST, ended_at=now, problem=problem), outcome
    )
    _free_gpus(attempt, now, now)
    if reports:
        add_attempt_event(
            "JOB_REQUEUED", attempt, f"{_title(attempt)} waits again: {problem}", now, "warning"
        )
    return True


def stay(job_id: int, host: str) -> None:
    """A waiting job has its checkpoint on this host, so it runs again there."""
    update_rows(Job, {"pk": job_id, "state": JobState.QUEUED.value, "home": ""}, home=host)


def _requeue(attempt: Attempt, ending: AttemptEnding, decision: RetryDecision) -> bool:
    """Put the job back into the queue. False when it was cancelled meanwhile."""
    placed = Job.objects.filter(pk=attempt.job_id, state__in=[state.value for state in PLACED])
    requeued = placed.filter(cancel_requested_at=None).update(
        state=JobState.QUEUED.value,
        started_at=None,
        problem="",
        failures=decision.failures,
        requeues=decision.requeues,
        gpu_memory_bytes=decision.memory_bytes,
        memory_bytes=decision.host_memory_bytes,
        retry_at=None if decision.pause is None else ending.ended_at + decision.pause,
        may_preempt_at=_may_preempt_at(attempt, ending, decision),
        **({"held": decision.held, "held_by": ""} | _hold_of_inactive(attempt)),
    )
    return bool(requeued)


def _hold_of_inactive(attempt: Attempt) -> dict[str, Any]:
    """Columns that hold the job of a deactivated user until an operator releases it; else {}."""
    owner = User.objects.get(pk=attempt.job.owner_id)
    text = f"The account {owner.username} is switched off; an operator may release the job."
    return {} if owner.is_active else {"held": text, "held_by": audit.GPUCOORD}


def _may_preempt_at(
    attempt: Attempt, ending: AttemptEnding, decision: RetryDecision
) -> datetime | None:
    """A preempted job may not preempt others before its cool-down has passed."""
    request = attempt.asked_to_leave
    if request is None or request.kind != YieldRequest.Kind.PREEMPTION:
        return attempt.job.may_preempt_at
    return ending.ended_at + decision.cool_down


def _add_yield_event(attempt: Attempt, ending: AttemptEnding) -> None:
    """Report a job that was preempted by a job, or evicted for the owner of its GPU."""
    request = attempt.asked_to_leave
    if request is None or ending.outcome is not Outcome.PREEMPTED:
        return
    text = f"{_title(attempt)} has left its GPU: {request.text}"
    if request.kind == YieldRequest.Kind.PREEMPTION:
        reason = EvictionReason.PREEMPTION
        add_attempt_event("JOB_PREEMPTED", attempt, text, ending.ended_at, "warning")
    else:
        reason = EvictionReason.of_code(request.code)
        add_attempt_event("JOB_EVICTED", attempt, text, ending.ended_at, "warning")
    for uuid in attempt.gpu_uuids:
        counters.add_eviction(reason, uuid)


def _change_state(job_id: int, old: JobState, new: JobState, **fields: object) -> bool:
    check_transition(old, new)
    return bool(update_rows(Job, {"pk": job_id, "state": old.value}, state=new.value, **fields))


def _finish(attempt: Attempt, **fields: object) -> None:
    """End the job from any state that a job with an open attempt can have."""
    placed = {"pk": attempt.job_id, "state": tuple(state.value for state in PLACED)}
    if not update_rows(Job, placed, state=JobState.FINISHED.value, env={}, **fields):
        raise RuntimeError(f"job {attempt.job_id} had an open attempt but had ended")
    if attempt.job.has_environment:
        relations.forget_environments([attempt.job_id])


def _free_gpus(attempt: Attempt, ended_at: datetime, now: datetime) -> None:
    """Its user does not pay for time in which gpucoord was down and the job had ended.

    A shorter time is charged already.
    """
    if attempt.gpu_uuids:
        is_late = now - ended_at > LONGEST_GAP
        at = max(ended_at, attempt.placed_at) if is_late else now
        snapshots.close_claims(str(attempt.job_id), at)
        if _waits_for_gpus():
            # The GPUs take other jobs once a reading shows that its memory is free.
            wake("sampler", only_here=True)


@compiled_once
def _waits_for_gpus() -> QuerySet[Any, int]:
    """The number of one job that waits for a GPU, if there is any."""
    waiting = Job.objects.filter(state=JobState.QUEUED.value, gpus__gt=0)
    return waiting.order_by().values_list("pk", flat=True)[:1]


def _end_attempt(attempt: Attempt, ending: AttemptEnding, outcome: str) -> bool:
    return bool(
        update_rows(
            Attempt,
            {"pk": attempt.pk, "ended_at": None},
            ended_at=ending.ended_at,
            outcome=outcome,
            exit_code=ending.exit_code,
            signal=ending.signal,
            problem=ending.problem,
            cpu_s=ending.cpu_s,
            peak_memory_bytes=ending.peak_memory_bytes,
            log_bytes=ending.log_bytes,
            use_due_at=ending.ended_at + USE_WRITTEN_AFTER if attempt.gpu_uuids else None,
        )
    )


def _claim(job: Job, gpu_uuid: str) -> ClaimFact:
    return ClaimFact(
        job_ref=str(job.pk),
        gpu_uuid=gpu_uuid,
        owner=job.owner.username,
        memory_bytes=job.gpu_memory_bytes,
        exclusive=job.exclusive,
        kind=ClaimKind.SCRIPT if job.model_service_id is None else ClaimKind.LLM,
        phase="" if job.model_service_id is None else "booting",
        task=job.name,
        script=job.script,
        counts_tasks=job.model_service_id is not None or job.worker_batch is not None,
        holder=job.agent.name if job.agent is not None else "",
    )


def _title(attempt: Attempt) -> str:
    return f"Job {attempt.job_id} ({attempt.job.name})"


def _outcome_words(ending: AttemptEnding) -> str:
    if ending.outcome is Outcome.FAILED and ending.signal is not None:
        return f"failed with signal {ending.signal}"
    if ending.outcome is Outcome.FAILED and ending.exit_code is not None:
        return f"failed with exit code {ending.exit_code}"
    return {Outcome.CANCELLED: "was cancelled", Outcome.LOST: "was lost"}.get(
        ending.outcome, ending.outcome.value.replace("_", " ")
    )


def add_attempt_event(
    kind: str, attempt: Attempt, text: str, at: datetime, severity: str = "info"
) -> None:
    """Add an event about an attempt's job, host and owner."""
    events.add(
        kind,
        text,
        now=at,
        severity=severity,
        host=attempt.host,
        job_ref=str(attempt.job_id),
        owner=attempt.job.owner.username,
    )
