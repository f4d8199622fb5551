"""The controller's part that tells of GPUs and memory that lie idle while somebody waits."""

from __future__ import annotations

from datetime import datetime, timedelta

from monitor import events, incidents, policies
from monitor.formats import duration
from monitor.models import Event, Incident
from monitor.policy.hog_rules import IDLE_HELD
from monitor.readings import Snapshot
from scheduler.blockers import Tier
from scheduler.jobs import JobState
from scheduler.models import Job
from scheduler.policy.idling import Idle, IdlePolicy, Waiting, beside, long_idle

# Nothing that lies idle would help them.
FOR_THEMSELVES = (int(Tier.PERSON), int(Tier.NOT_YET))
MOST_WAITING = 200
# An incident that is older was told when it opened.
FRESH = timedelta(minutes=15)


class IdleResources:
    """A Part. Told once for each time that something lies idle: the events remember."""

    name = "idle"

    def __init__(self, host: str) -> None:
        self._host = host

    def judge(self, snapshot: Snapshot | None, now: datetime) -> object:
        if snapshot is None:
            return None
        return [*self._gpus(snapshot, now), *self._memory(now)]

    def _gpus(self, snapshot: Snapshot, now: datetime) -> list[str]:
        policy = policies.current(IdlePolicy)
        idle = long_idle(snapshot.gpus, policy, now)
        found = beside(idle, _waiting(), policy, now) if idle else []
        return [self._tell_gpu(one, now) for one in found if not _told(one.gpu.uuid, one.since)]

    def _tell_gpu(self, idle: Idle, now: datetime) -> str:
        count, first = len(idle.waiting), idle.waiting[0]
        who = f"{count} jobs wait" if count > 1 else f"job {first.job_id} waits"
        since = duration((now - idle.since).total_seconds())
        why = f": {first.why}" if first.why else ""
        text = f"GPU {idle.gpu.index} is idle for {since} although {who}{why}"
        self._add(text, idle.gpu.uuid, "", now)
        return text

    def _memory(self, now: datetime) -> list[str]:
        """Memory that somebody holds idle beside others, as the incidents have it."""
        here = [row for row in incidents.all_going_on() if row.host == self._host and row.gpu_id]
        fresh = [row for row in here if row.rule == IDLE_HELD and row.opened_at > now - FRESH]
        found = [row for row in fresh if not _told(row.gpu_id or "", row.opened_at, _owner(row))]
        for row in found:
            self._add(row.text, row.gpu_id or "", _owner(row), now)
        return [row.text for row in found]

    def _add(self, text: str, gpu_uuid: str, owner: str, now: datetime) -> None:
        events.add(
            "IDLE_RESOURCE_DETECTED",
            text,
            now=now,
            severity="warning",
            host=self._host,
            gpu_uuid=gpu_uuid,
            owner=owner,
        )


def _waiting() -> list[Waiting]:
    """Jobs with GPUs that wait for something else than themselves."""
    rows = Job.objects.filter(state=JobState.QUEUED.value, gpus__gt=0, held="")
    columns = ("id", "submitted_at", "begin_at", "gpu_uuid", "blockers")
    return [
        Waiting(
            job_id=id_,
            since=max(submitted, begin) if begin else submitted,
            why=blockers[0].get("text") or "",
            gpu_uuid=uuid or "",
        )
        for id_, submitted, begin, uuid, blockers in rows.order_by("id").values_list(*columns)[
            :MOST_WAITING
        ]
        if blockers and not any(found.get("tier") in FOR_THEMSELVES for found in blockers)
    ]


def _owner(row: Incident) -> str:
    return row.job_owner or row.user


def _told(gpu_uuid: str, since: datetime, owner: str = "") -> bool:
    rows = Event.objects.filter(
        kind="IDLE_RESOURCE_DETECTED", gpu_uuid=gpu_uuid, owner=owner, at__gte=since
    )
    return rows.exists()
