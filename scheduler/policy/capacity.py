"""Policy: what each GPU can still give, from the newest snapshot and our own claims.

free = total - reserved by the driver
     - max(used - used by our jobs, sum of what foreign processes hold)
     - sum over our jobs of max(declared, observed)
     - margin

What is not known is never counted as free.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime

from monitor.health import Condition
from monitor.policy.limits import NOT_OURS, hidden
from monitor.readings import ClaimFact, GpuReading, Health, ProcessReading, Snapshot
from scheduler.blockers import Blocker, Tier
from scheduler.plans import Holder, PlanPolicy, Slot, Slots


def slots(
    snapshot: Snapshot | None,
    claims: Sequence[ClaimFact],
    policy: PlanPolicy,
    now: datetime,
    *,
    host: str,
    cpu_jobs: int = 0,
) -> Slots:
    """Say what `host` can give at `now`; `claims` are the open ones of that host."""
    return Slots(
        host=host,
        gpus=_slots(snapshot, claims, policy) if snapshot else (),
        cpu_jobs=cpu_jobs,
        blocker=_blocker(snapshot, policy, now),
    )


def _slots(snapshot: Snapshot, claims: Sequence[ClaimFact], policy: PlanPolicy) -> tuple[Slot, ...]:
    left_out = hidden(snapshot.gpus, snapshot.host.limits)
    found = [(gpu, _slot(snapshot, gpu, claims, policy)) for gpu in snapshot.gpus]
    return tuple(
        replace(slot, healthy=False, problem=NOT_OURS) if gpu.uuid in left_out else slot
        for gpu, slot in found
    )


def _blocker(snapshot: Snapshot | None, policy: PlanPolicy, now: datetime) -> Blocker | None:
    """Why the readings as a whole allow no placement."""
    if snapshot is None:
        return Blocker(code="NoReading", tier=Tier.MACHINE, text="The GPUs have not been read yet.")
    if now - snapshot.at > policy.stale_after:
        limit = f"{policy.stale_after.total_seconds():.0f} s"
        text = f"The last reading of the GPUs is older than {limit}, so nothing is placed on it."
        return Blocker(code="StaleReading", tier=Tier.MACHINE, text=text, requested=limit)
    if not snapshot.gpus:
        why = snapshot.problem or "the machine has none"
        text = f"No GPU can be used now: {why}"
        return Blocker(code="NoGpu", tier=Tier.MACHINE, text=text, holder=why)
    return None


def _slot(
    snapshot: Snapshot, gpu: GpuReading, claims: Sequence[ClaimFact], policy: PlanPolicy
) -> Slot:
    here = [c for c in claims if c.gpu_uuid == gpu.uuid]
    refs = {c.job_ref for c in here}
    processes = snapshot.on(gpu.uuid)
    own = [p for p in processes if p.job_ref in refs]
    foreign = [p for p in processes if p.job_ref not in refs]
    return Slot(
        gpu_uuid=gpu.uuid,
        host=snapshot.host.name,
        index=gpu.index,
        total_bytes=gpu.memory_total_bytes,
        free_bytes=_free(gpu, here, own, foreign, policy),
        healthy=gpu.health is Health.OK and gpu.condition in (None, Condition.HEALTHY),
        problem=gpu.problem or gpu.condition_reason,
        jobs=tuple(sorted(int(ref) for ref in refs)),
        exclusive=any(c.exclusive for c in here),
        undeclared=any(c.memory_bytes is None and not c.exclusive for c in here),
        foreign=_holders(gpu, own, foreign, policy),
    )


def _free(
    gpu: GpuReading,
    claims: Sequence[ClaimFact],
    own: Sequence[ProcessReading],
    foreign: Sequence[ProcessReading],
    policy: PlanPolicy,
) -> int | None:
    if gpu.memory_total_bytes is None or gpu.memory_used_bytes is None:
        return None
    others = max(gpu.memory_used_bytes - _held(own), _held(foreign))
    reserved = sum(
        max(c.memory_bytes or 0, _held(p for p in own if p.job_ref == c.job_ref)) for c in claims
    )
    taken = (gpu.memory_reserved_bytes or 0) + others + reserved + policy.margin_bytes
    return max(0, gpu.memory_total_bytes - taken)


def _held(processes: Iterable[ProcessReading]) -> int:
    """The sum of what is known. For our own, the unknown rest then counts as someone else's."""
    return sum(p.memory_bytes or 0 for p in processes)


def _holders(
    gpu: GpuReading,
    own: Sequence[ProcessReading],
    foreign: Sequence[ProcessReading],
    policy: PlanPolicy,
) -> tuple[Holder, ...]:
    """Foreign processes with memory (or with memory unknown), the largest first."""
    holders = [Holder(name=_name(p), memory_bytes=p.memory_bytes) for p in foreign]
    holders = [h for h in holders if h.memory_bytes != 0]
    everyone = [*own, *foreign]
    if gpu.memory_used_bytes is not None and all(p.memory_bytes is not None for p in everyone):
        unlisted = gpu.memory_used_bytes - _held(everyone)
        if unlisted > policy.unlisted_bytes:
            holders.append(Holder(name="a process that can't be seen", memory_bytes=unlisted))
    return tuple(sorted(holders, key=lambda h: (-(h.memory_bytes or 0), h.name)))


def _name(process: ProcessReading) -> str:
    if process.job_ref is not None:
        return f"job {process.job_ref}, which has just ended,"
    return f"{process.user or 'someone unknown'}/{process.program or f'pid {process.pid}'}"
