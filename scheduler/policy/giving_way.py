"""Policy: what it means for jobs that somebody uses a GPU for themselves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta

from monitor.owner_facts import OwnerReading, Presence
from monitor.policy.presence_policy import PresencePolicy
from monitor.readings import Snapshot
from scheduler.blockers import Blocker, Tier
from scheduler.plans import RunningJob, Yield

CODE = "OwnerPresent"
# An older snapshot says nothing about now.
STALE_AFTER = timedelta(seconds=10)


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
) -> tuple[Yield, ...]:
    """Which jobs are asked to leave now: those on the GPUs of whoever is there, and no others.

    It does not count among the times after which a job is held.
    """
    there = {owner.gpu_uuid: owner for owner in owners if owner.presence is Presence.OWNER}
    found = []
    for job in running:
        uuid = next((uuid for uuid in job.gpu_uuids if uuid in there), None)
        if uuid is not None and _gives_way(job, policy):
            text = f"{there[uuid].who} needs GPU {indices.get(uuid, '?')}."
            found.append(Yield(job_id=job.id, code=CODE, text=text, counts=False))
    return tuple(found)


def _gives_way(job: RunningJob, policy: PresencePolicy) -> bool:
    if job.yields or policy.yields == "none":
        return False
    return job.preemptible or policy.yields == "all"
