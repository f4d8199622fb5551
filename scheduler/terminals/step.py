"""The controller's part that warns and ends interactive jobs with idle GPUs; its rows."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.db.models import QuerySet

from monitor.facts.readings import Snapshot
from monitor.runtime.rows.database import compiled_once
from monitor.runtime.rows.item_isolation import ItemIsolation
from monitor.thresholds import rows as thresholds
from scheduler.facts.jobs import JobState
from scheduler.jobs import steps as sizing_rows
from scheduler.jobs.rows import changes
from scheduler.models import Attempt, Job
from scheduler.terminals.policy import BUSY_PCT, InteractivePolicy, Step, decide, used_at, warning

ENDED_BY = "gpucoord (idle GPU)"


@compiled_once
def attempts_on_gpus(host: str) -> QuerySet[Attempt]:
    """The attempts of running interactive jobs with GPUs of this host."""
    rows = Attempt.objects.filter(
        host=host,
        ended_at=None,
        started_at__isnull=False,
        job__interactive=True,
        job__gpus__gt=0,
        job__state=JobState.RUNNING.value,
    )
    return rows.select_related("job__owner").order_by("pk")


def warn(job: Job, text: str, now: datetime) -> None:
    Job.objects.filter(pk=job.pk).update(idle_warned_at=now, idle_warning=text)


def forget_warning(job: Job) -> None:
    Job.objects.filter(pk=job.pk).update(idle_warned_at=None, idle_warning="")


def end(job: Job, now: datetime) -> None:
    changes.cancel(Job.objects.filter(pk=job.pk), ENDED_BY, now)


class IdleTerminals:
    """A Part. The warning in the job's row is its memory."""

    name = "interactive"

    def __init__(self, host: str) -> None:
        self._host = host
        self._isolation = ItemIsolation(host, self.name)

    def judge(self, snapshot: Snapshot | None, now: datetime) -> dict[int, Step]:
        """The actions taken, by job. Without a fresh snapshot nothing is done."""
        if snapshot is None:
            return {}
        policy = thresholds.current(InteractivePolicy)
        readable = readable_gpus(snapshot, BUSY_PCT)
        attempts = [a for a in attempts_on_gpus(self._host) if readable.issuperset(a.gpu_uuids)]
        done = self._isolation.each(
            attempts,
            lambda attempt: f"job {attempt.job_id}",
            lambda attempt: _judge(attempt, policy, now),
            now,
        )
        return {attempt.job_id: step for attempt, step in done}


def readable_gpus(snapshot: Snapshot, busy_pct: float) -> set[str]:
    """The GPUs with known use, except busy ones for which the driver lists no process."""
    with_processes = {process.gpu_uuid for process in snapshot.processes}
    return {
        gpu.uuid
        for gpu in snapshot.gpus
        if gpu.utilization_pct is not None
        and (gpu.utilization_pct < busy_pct or gpu.uuid in with_processes)
    }


def _judge(attempt: Attempt, policy: InteractivePolicy, now: datetime) -> Step:
    job, started_at = attempt.job, attempt.started_at or attempt.placed_at
    since = now - timedelta(minutes=max(policy.end_minutes, policy.warn_minutes) + 2)
    used = used_at(sizing_rows.minutes(attempt, since), started_at)
    step = decide(used, job.idle_warned_at, policy, now)
    if step is Step.WARN:
        warn(job, warning(used, policy, now), now)
    elif step is Step.FORGET:
        forget_warning(job)
    elif step is Step.END:
        end(job, now)
    return step
