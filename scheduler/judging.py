"""The controller's part that finds incidents: it tells the monitor who waits."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.db.models import QuerySet

from monitor.demand import Demand
from monitor.hogging import Hogs
from monitor.policy.incident_life import Verdict
from monitor.prepared import prepared
from monitor.probes.cpu_users import cpu_processes
from monitor.readings import Snapshot
from scheduler.blockers import OTHERS_LOAD, Tier
from scheduler.jobs import JobState
from scheduler.models import Attempt, Job
from scheduler.standing import Standings

# What others' load brings about, besides what they hold.
BY_LOAD = frozenset({"Pressure", "UtilTarget"})
# Who stands further back would not start if one GPU became free.
MOST_WAITING = 200


class HogWatch:
    """A Part. What it remembers of the last hours it can build up again from rows."""

    name = "hogs"

    def __init__(self, host: str, gap_s: float = 15.0) -> None:
        self._host = host
        self._hogs = Hogs(host, gap_s, cpu_processes)
        self._standings = Standings()

    def judge(self, snapshot: Snapshot | None, now: datetime) -> Verdict | None:
        if snapshot is None:
            return None
        return self._hogs.judge(snapshot, self._demand(now), now, self._leaders())

    def _leaders(self) -> set[int]:
        """The runners of all jobs of this host, and what they started."""
        pids = ((row.runner_pid, row.pid) for row in _open_attempts(self._host))
        return {pid for pair in pids for pid in pair if pid is not None}

    def _demand(self, now: datetime) -> list[Demand]:
        """The jobs that would start if others used less."""
        rows = Job.objects.filter(state=JobState.QUEUED.value, gpus__gt=0, held="")
        columns = ("id", "owner__username", "gpus", "gpu_uuid", "submitted_at", "begin_at")
        waiting = [
            (*row, blockers)
            for *row, blockers in rows.order_by("-priority", "submitted_at", "id").values_list(
                *columns, "blockers"
            )[:MOST_WAITING]
            if _for_others(blockers)
        ]
        if not waiting:
            return []
        people = self._standings.at(now, {row[1] for row in waiting})
        return [
            Demand(
                owner=owner,
                since=max(submitted, begin) if begin else submitted,
                job_ref=str(id_),
                gpus=gpus,
                gpu_uuids=(uuid,) if uuid else (),
                share_pct=people[owner].quota.share_pct if owner in people else None,
            )
            for id_, owner, gpus, uuid, submitted, begin, _ in waiting
        ]


@prepared
def _open_attempts(host: str) -> QuerySet[Attempt]:
    return Attempt.objects.filter(host=host, ended_at=None).only("runner_pid", "pid")


def _for_others(blockers: list[dict[str, Any]]) -> bool:
    """Whether nothing but others' use keeps it from starting."""
    return bool(blockers) and all(
        found.get("tier") == int(Tier.CONTENTION)
        or found.get("code") in BY_LOAD
        or found.get("holder") == OTHERS_LOAD
        for found in blockers
    )
