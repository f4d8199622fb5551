"""Release of ended jobs' GPU memory: updates claims and quarantines.

Update the presence of interactive users in each snapshot.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from monitor.facts.claims import ClaimFact
from monitor.facts.gpu_states import ClosureFact, ClosureKind
from monitor.facts.presence import OwnerReading
from monitor.facts.readings import Snapshot
from monitor.gpus import rows as availability
from monitor.gpus.policy import presence as presence_detection
from monitor.gpus.policy.changes import Note
from monitor.gpus.policy.presence import PresencePolicy
from monitor.gpus.policy.states import Cooling, judge
from monitor.gpus.snapshot import rows as snapshots
from monitor.journal.rows import events
from monitor.runtime.rows.item_isolation import ItemIsolation


def look(
    snapshot: Snapshot, claims: Sequence[ClaimFact], closures: Sequence[ClosureFact]
) -> Cooling:
    """Judge the claims by a sweep with a fresh process list."""
    if not claims and not closures:
        return Cooling()
    return judge(snapshot.processes, snapshot.gpus, claims, closures, snapshot.at)


def apply(cooling: Cooling, snapshot: Snapshot, isolation: ItemIsolation) -> None:
    """Store the result and record events. The caller holds the sweep's transaction."""
    now = snapshot.at
    if cooling.started:
        snapshots.mark_claims_seen(cooling.started, now)
    if cooling.freed:
        snapshots.mark_claims_freed(cooling.freed, now)
    isolation.each(
        cooling.stuck,
        lambda closure: f"quarantine of {closure.gpu_uuid}",
        lambda closure: _close(closure, snapshot),
        now,
    )
    isolation.each(
        cooling.recovered,
        lambda uuid: f"end of the quarantine of {uuid}",
        lambda uuid: _reopen(uuid, snapshot),
        now,
    )


def _close(closure: ClosureFact, snapshot: Snapshot) -> None:
    host = snapshot.host.name
    if not availability.close(closure, host):
        return
    events.add(
        "GPU_QUARANTINED",
        f"{_name(closure.gpu_uuid, snapshot)} takes no new work. {closure.text}",
        now=snapshot.at,
        severity="warning",
        host=host,
        gpu_uuid=closure.gpu_uuid,
        job_ref=closure.job_ref,
    )


def _reopen(uuid: str, snapshot: Snapshot) -> None:
    if not availability.reopen([uuid], ClosureKind.QUARANTINED, snapshot.at):
        return
    text = f"{_name(uuid, snapshot)} has its memory back and takes work again."
    host = snapshot.host.name
    events.add("GPU_QUARANTINE_OVER", text, now=snapshot.at, host=host, gpu_uuid=uuid)


def _name(uuid: str, snapshot: Snapshot) -> str:
    return next((f"GPU {gpu.index}" for gpu in snapshot.gpus if gpu.uuid == uuid), "A GPU")


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
