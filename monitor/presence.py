"""Step: who is on each GPU for themselves, seen with each snapshot; what is known stands in it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from monitor import policies
from monitor.owner_facts import OwnerReading
from monitor.policy import presence
from monitor.policy.notes import Note
from monitor.policy.presence_policy import PresencePolicy
from monitor.readings import Snapshot


def watched(snapshot: Snapshot, before: Snapshot | None) -> tuple[Snapshot, list[Note]]:
    """The snapshot with who is there, and what is to be told of it."""
    policy = policies.current(PresencePolicy)
    known = before.owners if before else ()
    owners = presence.look(snapshot, known, policy) if policy.enabled else ()
    came, gone = presence.changes(known, owners)
    indices = {gpu.uuid: gpu.index for gpu in snapshot.gpus}
    return replace(snapshot, owners=owners), [
        *_notes("OWNER_PRESENT", came, indices, "{who} is on {gpu}: jobs give way to it."),
        *_notes("OWNER_GONE", gone, indices, "{who} has left {gpu}: jobs may start there again."),
    ]


def on(snapshot: Snapshot, gpu_uuid: str) -> OwnerReading | None:
    """Who keeps this GPU from jobs; None = nobody."""
    found = (o for o in snapshot.owners if o.gpu_uuid == gpu_uuid and o.keeps_closed)
    return next(found, None)


def _notes(
    kind: str, owners: Iterable[OwnerReading], indices: Mapping[str, int], text: str
) -> Iterator[Note]:
    for owner in owners:
        gpu = f"GPU {indices[owner.gpu_uuid]}" if owner.gpu_uuid in indices else "a lost GPU"
        told = text.format(who=owner.who, gpu=gpu)
        yield Note(kind=kind, text=told, gpu_uuid=owner.gpu_uuid, owner=owner.user or "")
