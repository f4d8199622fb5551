"""Update the presence of interactive users in each snapshot."""

from __future__ import annotations

from dataclasses import replace

from monitor.facts.presence import OwnerReading
from monitor.facts.readings import Snapshot
from monitor.gpus.policy.changes import Note
from monitor.gpus.presence import policy as presence_detection
from monitor.gpus.presence.policy import PresencePolicy


def watched(
    snapshot: Snapshot, before: Snapshot | None, policy: PresencePolicy
) -> tuple[Snapshot, list[Note]]:
    """The snapshot with the presence on each GPU, and the events to record."""
    previous = before.owners if before else ()
    owners = presence_detection.look(snapshot, previous, policy) if policy.enabled else ()
    came, gone = presence_detection.changes(previous, owners)
    notes = [
        _note_of_coming(
            owner, _gpu(owner, snapshot), presence_detection.others_on(owner, snapshot, policy)
        )
        for owner in came
    ]
    notes += [_note_of_going(owner, _gpu(owner, snapshot)) for owner in gone]
    return replace(snapshot, owners=owners), notes


def _gpu(owner: OwnerReading, snapshot: Snapshot) -> str:
    names = (f"GPU {gpu.index}" for gpu in snapshot.gpus if gpu.uuid == owner.gpu_uuid)
    return next(names, "a lost GPU")


def _note_of_coming(owner: OwnerReading, gpu: str, count: int) -> Note:
    return Note(
        kind="OWNER_PRESENT",
        text=f"Other GPU processes detected, evicting models: {owner.description} is on {gpu}.",
        severity="warning",
        gpu_uuid=owner.gpu_uuid,
        owner=owner.user or "",
        figures={"other_process_count": count},
    )


def _note_of_going(owner: OwnerReading, gpu: str) -> Note:
    text = f"{owner.description} has left {gpu}: jobs may start there again."
    return Note(kind="OWNER_GONE", text=text, gpu_uuid=owner.gpu_uuid, owner=owner.user or "")
