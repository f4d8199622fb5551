"""Rows <-> facts: which claims came to their GPUs, whose memory is back, who is in quarantine."""

from __future__ import annotations

from collections.abc import Sequence

from monitor import events, gpu_closing, policies, store
from monitor.claims import ClaimFact
from monitor.gpu_closures import ClosureFact, ClosureKind
from monitor.policy.cooling import Cooling, CoolingPolicy, judge
from monitor.readings import Snapshot


def look(
    snapshot: Snapshot, claims: Sequence[ClaimFact], closures: Sequence[ClosureFact]
) -> Cooling:
    """What a sweep that looked at processes anew says of the claims."""
    if not claims and not closures:
        return Cooling()
    ended = any(claim.until is not None for claim in claims)
    policy = policies.current(CoolingPolicy) if ended else CoolingPolicy()
    return judge(snapshot.processes, snapshot.gpus, claims, closures, policy, snapshot.at)


def apply(found: Cooling, snapshot: Snapshot) -> None:
    """Write that down and tell of it, within the sweep's transaction."""
    host, now = snapshot.host.name, snapshot.at
    names = {gpu.uuid: f"GPU {gpu.index}" for gpu in snapshot.gpus}
    if found.seen:
        store.mark_claims_seen(found.seen, now)
    if found.freed:
        store.mark_claims_freed(found.freed, now)
    for closure in found.stuck:
        if gpu_closing.close(closure, host):
            text = f"{names.get(closure.gpu_uuid, 'A GPU')} takes no new work. {closure.text}"
            events.add(
                "GPU_QUARANTINED",
                text,
                now=now,
                severity="warning",
                host=host,
                gpu_uuid=closure.gpu_uuid,
                job_ref=closure.job_ref,
            )
    for uuid in found.recovered:
        if gpu_closing.reopen([uuid], ClosureKind.QUARANTINED, now):
            text = f"{names.get(uuid, 'A GPU')} has its memory back and takes work again."
            events.add("GPU_QUARANTINE_OVER", text, now=now, host=host, gpu_uuid=uuid)
