"""Who is on each GPU for themselves, seen with each snapshot; what is known stands in it."""

from __future__ import annotations

from dataclasses import replace

from monitor.owner_facts import OwnerReading
from monitor.policy import presence
from monitor.policy.notes import Note
from monitor.policy.presence_policy import PresencePolicy
from monitor.readings import Snapshot


def watched(
    snapshot: Snapshot, before: Snapshot | None, policy: PresencePolicy
) -> tuple[Snapshot, list[Note]]:
    """The snapshot with who is there, and what is to be told of it."""
    known = before.owners if before else ()
    owners = presence.look(snapshot, known, policy) if policy.enabled else ()
    came, gone = presence.changes(known, owners)
    told = [_note_of_coming(owner, _gpu(owner, snapshot)) for owner in came]
    told += [_note_of_going(owner, _gpu(owner, snapshot)) for owner in gone]
    return replace(snapshot, owners=owners), told


def _gpu(owner: OwnerReading, snapshot: Snapshot) -> str:
    found = (f"GPU {gpu.index}" for gpu in snapshot.gpus if gpu.uuid == owner.gpu_uuid)
    return next(found, "a lost GPU")


def _note_of_coming(owner: OwnerReading, gpu: str) -> Note:
    text = f"{owner.who} is on {gpu}: jobs give way to it."
    user = owner.user or ""
    return Note(kind="OWNER_PRESENT", text=text, gpu_uuid=owner.gpu_uuid, owner=user)


def _note_of_going(owner: OwnerReading, gpu: str) -> Note:
    text = f"{owner.who} has left {gpu}: jobs may start there again."
    return Note(kind="OWNER_GONE", text=text, gpu_uuid=owner.gpu_uuid, owner=owner.user or "")
