"""Rows: ask a running job to leave its GPUs, and keep these for whom it makes room; or no longer.

How the job learns of it is the executor's and the runner's; what becomes of it, endings.py's.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from django.conf import settings
from django.db import transaction

from monitor import events, policies
from monitor.wake import wake
from scheduler.jobs import JobState
from scheduler.models import Attempt, KeptGpu, YieldRequest
from scheduler.plans import Yield
from scheduler.policy.preemption import PreemptionPolicy, deadline_of

PLACED = (JobState.STARTING.value, JobState.RUNNING.value)


def ask(wish: Yield, now: datetime) -> bool:
    """Ask once; False when the job has left, is being stopped, or is to leave as soon already.

    Who comes with an earlier deadline than the first is heard.
    """
    with transaction.atomic():
        attempts = Attempt.objects.select_related("job__owner").select_for_update(of=("self",))
        attempt = attempts.filter(job_id=wish.job_id, ended_at=None, job__state__in=PLACED).first()
        if attempt is None or not _request(attempt, wish, now):
            return False
        events.add(
            "JOB_YIELDING",
            f"Job {attempt.job_id} ({attempt.job.name}) is asked to leave its GPU: {wish.text}",
            now=now,
            severity="warning",
            host=attempt.host,
            job_ref=str(attempt.job_id),
            owner=attempt.job.owner.username,
        )
        wake("scheduler")
        wake("live")
    return True


def kept(host: str, now: datetime) -> dict[str, int]:
    """GPUs that were freed for a job which still waits, by UUID."""
    rows = KeptGpu.objects.filter(
        host=host, until__gt=now, job__state=JobState.QUEUED.value, job__held=""
    )
    return dict(rows.values_list("gpu_uuid", "job_id"))


def idle(host: str, now: datetime) -> list[YieldRequest]:
    """Requests for jobs that wait no more, as they were cancelled, held or placed elsewhere, of
    jobs that have not been stopped for it yet."""
    rows = YieldRequest.objects.filter(
        attempt__host=host,
        attempt__ended_at=None,
        attempt__job__state__in=PLACED,
        kind=YieldRequest.Kind.PREEMPTION,
        withdrawn_at=None,
    ).exclude(for_job__state=JobState.QUEUED.value, for_job__held="")
    found = rows.select_related("attempt__job__owner")
    return [asked for asked in found if now < _stops_at(asked)]


def withdraw(asked: YieldRequest, now: datetime) -> None:
    """The job may stay; the executor tells its runner."""
    rows = YieldRequest.objects.filter(pk=asked.pk, withdrawn_at=None, deadline=asked.deadline)
    if not rows.update(withdrawn_at=now):
        return
    KeptGpu.objects.filter(job=asked.for_job).delete()
    attempt = asked.attempt
    whom = "Nobody" if asked.for_job_id is None else f"Job {asked.for_job_id} no longer"
    events.add(
        "JOB_MAY_STAY",
        f"Job {attempt.job_id} ({attempt.job.name}) may stay: {whom} needs its GPU.",
        now=now,
        host=attempt.host,
        job_ref=str(attempt.job_id),
        owner=attempt.job.owner.username,
    )
    wake("scheduler")
    wake("live")


def _stops_at(asked: YieldRequest) -> datetime:
    """When its runner sends SIGTERM: after that it leaves, whatever is said."""
    grace = timedelta(seconds=settings.CONFIG.cancel_grace_s)
    return asked.deadline - min(grace, (asked.deadline - asked.asked_at) / 2)


def _request(attempt: Attempt, wish: Yield, now: datetime) -> bool:
    policy = policies.current(PreemptionPolicy)
    job = attempt.job
    deadline = deadline_of(
        wish,
        grace=timedelta(
            seconds=settings.CONFIG.cancel_grace_s if job.grace_s is None else job.grace_s
        ),
        requeue=job.requeue,
        ran_for=now - (attempt.started_at or now),
        policy=policy,
        now=now,
    )
    columns = {
        "kind": YieldRequest.Kind.PREEMPTION if wish.for_job else YieldRequest.Kind.EVICTION,
        "code": wish.code,
        "text": wish.text,
        "for_job_id": wish.for_job,
        "counts": wish.counts,
        "deadline": deadline,
    }
    request, is_new = YieldRequest.objects.get_or_create(
        attempt=attempt, defaults={"asked_at": now, **columns}
    )
    if not is_new:
        if request.withdrawn_at is None and request.deadline <= deadline:
            return False
        YieldRequest.objects.filter(pk=request.pk).update(
            asked_at=now, withdrawn_at=None, **columns
        )
    _keep(attempt.host, wish, deadline + timedelta(seconds=policy.keep_s))
    return True


def _keep(host: str, wish: Yield, until: datetime) -> None:
    if wish.for_job is None:
        return
    for uuid in wish.gpu_uuids:
        KeptGpu.objects.update_or_create(
            host=host, gpu_uuid=uuid, defaults={"job_id": wish.for_job, "until": until}
        )
