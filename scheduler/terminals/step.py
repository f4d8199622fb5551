"""The controller's part that warns and ends interactive jobs with idle GPUs."""

from __future__ import annotations

from datetime import datetime, timedelta

from monitor.facts.readings import Snapshot
from monitor.runtime.rows.item_isolation import ItemIsolation
from monitor.thresholds import rows as thresholds
from scheduler.models import Attempt
from scheduler.sizing import step as sizing_rows
from scheduler.terminals import rows
from scheduler.terminals.policy import InteractivePolicy, Step, decide, used_at, warning


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
        readable = readable_gpus(snapshot, policy.busy_pct)
        attempts = [a for a in rows.on_gpus(self._host) if readable.issuperset(a.gpu_uuids)]
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
    used = used_at(sizing_rows.minutes(attempt, since), started_at, policy)
    step = decide(used, job.idle_warned_at, policy, now)
    if step is Step.WARN:
        rows.warn(job, warning(used, policy, now), now)
    elif step is Step.FORGET:
        rows.forget_warning(job)
    elif step is Step.END:
        rows.end(job, now)
    return step
