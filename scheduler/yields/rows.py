"""Yield requests to running jobs, and the GPUs held for the jobs that they make room for.

The executor and the runner deliver a request to the job; the retry policy decides what follows.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from django.conf import settings
from django.db import transaction
from django.db.models import QuerySet

from monitor.runtime.rows.database import prepared
from monitor.runtime.rows.wakeups import wake
from monitor.thresholds import rows as thresholds
from scheduler.facts.jobs import JobState
from scheduler.facts.plans import Yield
from scheduler.lifecycle.rows.transitions import add_attempt_event
from scheduler.models import Attempt, GpuHold, Job, YieldRequest
from scheduler.planner.preemption import PreemptionPolicy, deadline_of

PLACED = (JobState.STARTING.value, JobState.RUNNING.value)


def ask(request: Yield, now: datetime) -> bool:
    """Ask once; False when the job has left, is being stopped, or is to leave as soon already.

    A request with an earlier deadline replaces the previous one.
    """
    with transaction.atomic():
        attempts = Attempt.objects.select_related("job__owner").select_for_update(of=("self",))
        attempt = attempts.filter(
            job_id=request.job_id, ended_at=None, job__state__in=PLACED
        ).first()
        if attempt is None or not _request(attempt, request, now):
            return False
        text = (
            f"Job {attempt.job_id} ({attempt.job.name}) is asked to leave its GPU: {request.text}"
        )
        add_attempt_event("JOB_YIELDING", attempt, text, now, "warning")
        wake("scheduler")
        wake("live")
    return True


def requeue(job: Job, by: str, now: datetime) -> bool:
    """Ask a running job to stop and put it back into the queue; False when it does not run.

    Later interruptions requeue it too.
    """
    with transaction.atomic():
        # Else a job that does not save its work would end.
        Job.objects.filter(pk=job.pk, state__in=PLACED).update(requeue=True)
        text = f"{by} puts it back into the queue."
        return ask(Yield(job_id=job.pk, code="Requeued", text=text, counts=False), now)


def gpu_holds(host: str, now: datetime) -> dict[str, int]:
    """{GPU UUID: job} of the GPUs that were freed for a job which still waits."""
    return {hold.gpu_uuid: hold.job_id for hold in _holds(host) if hold.until > now}


@prepared
def _holds(host: str) -> QuerySet[GpuHold]:
    return GpuHold.objects.filter(host=host, job__state=JobState.QUEUED.value, job__held="")


def withdrawable(host: str, now: datetime) -> list[YieldRequest]:
    """Requests whose beneficiary no longer waits, made to jobs that got no SIGTERM yet."""
    rows = YieldRequest.objects.filter(
        attempt__host=host,
        attempt__ended_at=None,
        attempt__job__state__in=PLACED,
        kind=YieldRequest.Kind.PREEMPTION,
        withdrawn_at=None,
    ).exclude(for_job__state=JobState.QUEUED.value, for_job__held="")
    requests = rows.select_related("attempt__job__owner")
    return [request for request in requests if now < _stops_at(request)]


def withdraw(request: YieldRequest, now: datetime) -> None:
    """Withdraw the request; the executor informs the job's runner."""
    rows = YieldRequest.objects.filter(pk=request.pk, withdrawn_at=None, deadline=request.deadline)
    if not rows.update(withdrawn_at=now):
        return
    GpuHold.objects.filter(job=request.for_job).delete()
    attempt = request.attempt
    beneficiary = "No job" if request.for_job_id is None else f"Job {request.for_job_id} no longer"
    text = f"Job {attempt.job_id} ({attempt.job.name}) may stay: {beneficiary} needs its GPU."
    add_attempt_event("JOB_MAY_STAY", attempt, text, now)
    wake("scheduler")
    wake("live")


def _stops_at(request: YieldRequest) -> datetime:
    """When the runner sends SIGTERM. After that the request cannot be withdrawn."""
    grace = timedelta(seconds=settings.CONFIG.cancel_grace_s)
    return request.deadline - min(grace, (request.deadline - request.asked_at) / 2)


def _request(attempt: Attempt, request: Yield, now: datetime) -> bool:
    policy = thresholds.current(PreemptionPolicy)
    job = attempt.job
    deadline = deadline_of(
        request,
        grace=timedelta(
            seconds=settings.CONFIG.cancel_grace_s if job.grace_s is None else job.grace_s
        ),
        requeue=job.requeue,
        ran_for=now - (attempt.started_at or now),
        policy=policy,
        now=now,
    )
    columns = {
        "kind": YieldRequest.Kind.PREEMPTION if request.for_job else YieldRequest.Kind.EVICTION,
        "code": request.code,
        "text": request.text,
        "for_job_id": request.for_job,
        "counts": request.counts,
        "deadline": deadline,
    }
    row, is_new = YieldRequest.objects.get_or_create(
        attempt=attempt, defaults={"asked_at": now, **columns}
    )
    if not is_new:
        if row.withdrawn_at is None and row.deadline <= deadline:
            return False
        YieldRequest.objects.filter(pk=row.pk).update(asked_at=now, withdrawn_at=None, **columns)
    _keep(attempt.host, request, deadline + timedelta(seconds=policy.keep_s))
    return True


def _keep(host: str, request: Yield, until: datetime) -> None:
    if request.for_job is None:
        return
    for uuid in request.gpu_uuids:
        GpuHold.objects.update_or_create(
            host=host, gpu_uuid=uuid, defaults={"job_id": request.for_job, "until": until}
        )
