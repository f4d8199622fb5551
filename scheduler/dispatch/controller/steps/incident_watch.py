"""The controller's part that finds incidents: it gives the monitor the waiting jobs."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import Any

from django.db.models import F, QuerySet

from monitor.facts.claims import Demand
from monitor.facts.readings import Snapshot
from monitor.gpus.sampling.probes.host import cpu_processes
from monitor.incidents.policy.lifecycle import Verdict
from monitor.incidents.step import IncidentStep
from monitor.runtime.rows.item_isolation import ItemIsolation
from monitor.runtime.rows.prepared import compiled_once
from scheduler.facts.blockers import LOAD_CODES, Tier
from scheduler.facts.jobs import JobState
from scheduler.fair_share.rows import Rights
from scheduler.models import Attempt, Job

# Jobs further back in the queue would not start if one GPU became free.
MOST_WAITING = 200


class IncidentWatch:
    """A Part. Its memory of the last hours can be rebuilt from rows."""

    name = "hogs"

    def __init__(self, host: str, gap_s: float = 15.0) -> None:
        self._host = host
        self._isolation = ItemIsolation(host, self.name)
        self._incidents = IncidentStep(host, gap_s, cpu_processes)

    def judge(self, snapshot: Snapshot | None, now: datetime) -> Verdict | None:
        if snapshot is None:
            return None
        demand, shares = self._demand(now, _owners_on(snapshot))
        return self._incidents.judge(snapshot, demand, now, self._leaders(), shares)

    def _leaders(self) -> set[int]:
        """The pids of the runners of all jobs of this host, and of their first processes."""
        pids = ((row.runner_pid, row.pid) for row in _open_attempts(self._host))
        return {pid for pair in pids for pid in pair if pid is not None}

    def _demand(
        self, now: datetime, present: Collection[str]
    ) -> tuple[list[Demand], dict[str, float]]:
        """The jobs that would start if others used less, and the fair share (%) of each of
        `present`, which is read while such a job waits.
        """
        judged = self._isolation.convert(
            _first_waiting(),
            lambda job: f"job {job.pk}",
            lambda job: _waits_for_others(job.blockers),
            now,
        )
        waiting = [job for job, waits_for_others in judged if waits_for_others]
        if not waiting:
            return [], {}
        rights = Rights(now, present)
        demand = [
            Demand(
                owner=job.owner_name,
                since=max(job.submitted_at, job.begin_at) if job.begin_at else job.submitted_at,
                job_ref=str(job.pk),
                gpus=job.gpus,
                gpu_uuids=(job.gpu_uuid,) if job.gpu_uuid else (),
            )
            for job in waiting
        ]
        return demand, {name: 100 * rights.fair_share(name) for name in present}


@compiled_once
def _first_waiting() -> QuerySet[Any]:
    """The waiting jobs that come first, each with `owner_name`."""
    rows = Job.objects.filter(state=JobState.QUEUED.value, gpus__gt=0, held="")
    named = rows.annotate(owner_name=F("owner__username"))
    columns = named.only("gpus", "gpu_uuid", "submitted_at", "begin_at", "blockers")
    return columns.order_by("-priority", "submitted_at", "id")[:MOST_WAITING]


@compiled_once
def _open_attempts(host: str) -> QuerySet[Attempt]:
    """Processes of another engine run on its nodes, where these pids are other processes."""
    rows = Attempt.objects.filter(host=host, ended_at=None, engine="")
    return rows.only("runner_pid", "pid")


def _owners_on(snapshot: Snapshot) -> set[str]:
    """The owners of the processes on GPUs."""
    owners = (process.job_owner or process.user for process in snapshot.processes)
    return {owner for owner in owners if owner}


def _waits_for_others(blockers: list[dict[str, Any]]) -> bool:
    """Whether the use of others is the only reason why the job waits."""
    return bool(blockers) and all(
        blocker.get("tier") == int(Tier.CONTENTION) or blocker.get("code") in LOAD_CODES
        for blocker in blockers
    )
