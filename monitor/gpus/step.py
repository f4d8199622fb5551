"""Release of ended jobs' GPU memory: updates claims and quarantines."""

from __future__ import annotations

from collections.abc import Sequence

from monitor.facts.claims import ClaimFact
from monitor.facts.gpu_states import ClosureFact, ClosureKind
from monitor.facts.readings import Snapshot
from monitor.gpus import rows as availability
from monitor.gpus.policy.cooling import Cooling, judge
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
