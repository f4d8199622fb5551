"""Policy: what it means for jobs that somebody uses a GPU for themselves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta

from monitor.owner_facts import OwnerReading, Presence
from monitor.policy.presence_policy import PresencePolicy
from monitor.readings import Snapshot
from scheduler.blockers import Blocker, Tier
from scheduler.plans import RunningJob, Yield

CODE = "OwnerPresent"
# What a job gets that has little to save.
YOUNG_GRACE = timedelta(seconds=1)


def closed(snapshot: Snapshot) -> dict[str, tuple[Blocker, ...]]:
    """By the GPU's UUID, that somebody is there: nothing new starts beside them."""
    if not snapshot.owners:
        return {}
    indices = {gpu.uuid: gpu.index for gpu in snapshot.gpus}
    return {
        owner.gpu_uuid: (_blocker(owner, f"GPU {indices[owner.gpu_uuid]}"),)
        for owner in snapshot.owners
        if owner.keeps_closed and owner.gpu_uuid in indices
    }


def _blocker(owner: OwnerReading, gpu: str) -> Blocker:
    if owner.presence is Presence.LEAVING:
        text = f"{owner.who} was on {gpu} until just now; jobs start there again if it stays away."
    else:
        text = f"{owner.who} is on {gpu}; jobs start there again when it is gone."
    return Blocker(
        code=CODE,
        text=text,
        tier=Tier.MACHINE,
        available=gpu,
        holder=f"{owner.user or 'somebody'}/{owner.program or 'a program'}",
        until=owner.until,
    )


def evictions(
    owners: Iterable[OwnerReading],
    running: Iterable[RunningJob],
    indices: Mapping[str, int],
    policy: PresencePolicy,
    now: datetime,
) -> tuple[Yield, ...]:
    """Which jobs are asked to leave now: those on the GPUs of whoever is there, and no others."""
    there = {owner.gpu_uuid: owner for owner in owners if owner.presence is Presence.OWNER}
    return tuple(
        _yield(job, there[uuid], f"GPU {indices.get(uuid, '?')}", policy, now)
        for job in running
        if _gives_way(job, policy)
        for uuid in [next((u for u in job.gpu_uuids if u in there), None)]
        if uuid is not None
    )


def _gives_way(job: RunningJob, policy: PresencePolicy) -> bool:
    if job.yields or policy.yields == "none":
        return False
    return job.preemptible or policy.yields == "all"


def _yield(
    job: RunningJob, owner: OwnerReading, gpu: str, policy: PresencePolicy, now: datetime
) -> Yield:
    is_young = now - job.started_at < timedelta(minutes=policy.young_minutes)
    return Yield(
        job_id=job.id,
        code=CODE,
        text=f"{owner.who} needs {gpu}.",
        counts=False,
        deadline=now + YOUNG_GRACE if is_young else None,
    )
