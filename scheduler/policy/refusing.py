"""Policy: why a GPU can't take a request now, in words.

exclusive          a GPU without any of our jobs and without foreign processes that hold memory
shared, declared   enough free memory, and no other heavy start that has not ramped
shared, undeclared a GPU without our other jobs; while such a job runs, nothing of ours is put
                   beside it, as nobody knows what it will take
"""

from __future__ import annotations

from collections.abc import Sequence

from monitor.formats import GIB
from scheduler.blockers import Blocker, Tier
from scheduler.jobs import Requirement
from scheduler.plans import PlanPolicy, Slot
from scheduler.policy.suiting import Lack, lack
from scheduler.units import size


def verdict(
    requirement: Requirement, gpu: Slot, policy: PlanPolicy, job_id: int | None = None
) -> str | None:
    """The code of why this GPU can't take the job now, without the words; None when it can."""
    if not gpu.healthy:
        return "GpuUnhealthy"
    if lack(requirement, gpu) is not None:
        return "GpuUnsuitable"
    if gpu.closed:
        return gpu.closed[0].code
    if gpu.kept_for is not None and gpu.kept_for != job_id:
        return "ReservedFor"
    alone, wants = requirement.exclusive, requirement.memory_bytes
    if gpu.exclusive or gpu.undeclared or (gpu.jobs and (alone or wants is None)):
        return "GpuTaken"
    if alone and gpu.foreign:
        return "GpuTaken"
    if wants is None:
        # An exclusive job takes what there is; a shared one needs at least something.
        wants = -1 if alone else policy.undeclared_bytes
    if wants >= 0 and (gpu.free_bytes is None or gpu.free_bytes < wants):
        return "MemoryUnknown" if gpu.free_bytes is None else "GpuMemory"
    return "Ramping" if gpu.ramping is not None and is_heavy(requirement, gpu) else None


def refusal(
    requirement: Requirement, gpu: Slot, policy: PlanPolicy, job_id: int | None = None
) -> Blocker | None:
    """Why this GPU can't take the job now; None when it can."""
    code = verdict(requirement, gpu, policy, job_id)
    if code is None:
        return None
    missing = lack(requirement, gpu)
    if code == "GpuUnhealthy":
        why = gpu.problem or "it does not answer"
        text = f"{_gpu(gpu)} can't be used: {why}"
        return Blocker(code=code, tier=Tier.MACHINE, text=text, holder=why)
    if missing is not None:
        return _lacking(missing, gpu)
    if gpu.closed:
        return gpu.closed[0]
    if code == "ReservedFor":
        holder = f"job {gpu.kept_for}"
        text = f"{_gpu(gpu)} was freed for {holder} and is kept for it."
        return Blocker(code=code, text=text, available=_gpu(gpu), holder=holder)
    if code == "GpuTaken":
        return _neighbours(requirement, gpu)
    return _ramping(gpu) if code == "Ramping" else _memory(requirement, gpu, policy)


def _neighbours(requirement: Requirement, gpu: Slot) -> Blocker:
    """Who is on the GPU and can't be beside this job."""
    ours = _jobs(gpu.jobs)
    if gpu.exclusive:
        text = f"{ours} has {_gpu(gpu)} alone."
    elif requirement.exclusive and gpu.jobs:
        text = f"{ours} {_run(gpu.jobs)} on {_gpu(gpu)}, and you ask to have a GPU alone."
    elif requirement.exclusive and gpu.foreign:
        text = f"{_foreign(gpu)} on {_gpu(gpu)}, and you ask to have a GPU alone."
        return _taken(gpu, text, holder=gpu.foreign[0].name)
    elif gpu.undeclared:
        text = f"{ours} on {_gpu(gpu)} did not say how much memory it needs, so it stays alone."
    else:
        text = f"{ours} {_run(gpu.jobs)} on {_gpu(gpu)}; say how much memory you need to share it."
    return _taken(gpu, text, holder=ours[0].lower() + ours[1:])


def _memory(requirement: Requirement, gpu: Slot, policy: PlanPolicy) -> Blocker:
    declared = requirement.memory_bytes
    wanted = policy.undeclared_bytes if declared is None else declared
    if gpu.free_bytes is None:
        text = f"How much memory is free on {_gpu(gpu)} is not known."
        return Blocker(
            code="MemoryUnknown",
            tier=Tier.MACHINE,
            text=text,
            requested=size(wanted),
            available=_gpu(gpu),
        )
    free = f"{_floor(gpu.free_bytes)} of {size(gpu.total_bytes)}"
    asks = "a job needs at least" if requirement.memory_bytes is None else "you ask for"
    holds = _holds(gpu)
    return Blocker(
        code="GpuMemory",
        text=f"{_gpu(gpu)} has {free} free, {asks} {size(wanted)}{'; ' if holds else ''}{holds}.",
        requested=size(wanted),
        available=f"{free} on {_gpu(gpu)}",
        holder=", ".join(
            [*(h.name for h in gpu.foreign[:1]), *(f"job {j}" for j in sorted(gpu.jobs))]
        )
        or None,
    )


def _ramping(gpu: Slot) -> Blocker:
    """One heavy start at a time on a GPU: what the last one takes must be seen first."""
    holder = f"job {gpu.ramping}"
    return Blocker(
        code="Ramping",
        tier=Tier.MACHINE,
        text=f"{_gpu(gpu)}: {holder} has just started there and has not yet taken its memory.",
        available=_gpu(gpu),
        holder=holder,
        until=gpu.ramps_until,
    )


def _lacking(missing: Lack, gpu: Slot) -> Blocker:
    has = "that is not known" if missing.has is None else f"it has {missing.has}"
    return Blocker(
        code="GpuUnsuitable",
        tier=Tier.MACHINE,
        text=f"{_gpu(gpu)}: you ask for {missing.wants}; {has}.",
        requested=missing.wants,
        available=_gpu(gpu),
    )


def is_heavy(requirement: Requirement, gpu: Slot) -> bool:
    """Whether it is a shared job of so much memory that its start must be waited for."""
    wants = requirement.memory_bytes
    shares = not requirement.exclusive and wants is not None
    return shares and gpu.heavy_bytes is not None and (wants or 0) >= gpu.heavy_bytes


def is_known_to_lack(requirement: Requirement, gpu: Slot) -> bool:
    """Whether what it is rules it out for ever."""
    missing = lack(requirement, gpu)
    return missing is not None and missing.has is not None


def _taken(gpu: Slot, text: str, *, holder: str) -> Blocker:
    return Blocker(code="GpuTaken", text=text, available=_gpu(gpu), holder=holder)


def undeclared(requirement: Requirement) -> bool:
    return requirement.memory_bytes is None and not requirement.exclusive


def room(gpu: Slot) -> int:
    return -1 if gpu.free_bytes is None else gpu.free_bytes


def _gpu(gpu: Slot) -> str:
    return f"GPU {gpu.index}"


def _floor(value: int) -> str:
    """Rounded down to a GiB (a tenth below that): a figure that does not flicker, or flatter."""
    step = GIB if value >= GIB else GIB // 10
    return size(value // step * step)


def _jobs(ids: Sequence[int]) -> str:
    if len(ids) < 2:
        return f"Job {ids[0]}" if ids else ""
    return f"Jobs {', '.join(map(str, ids[:-1]))} and {ids[-1]}"


def _run(ids: Sequence[int]) -> str:
    return "runs" if len(ids) == 1 else "run"


def _foreign(gpu: Slot) -> str:
    first, *rest = gpu.foreign
    held = "memory" if first.memory_bytes is None else size(first.memory_bytes)
    more = f" (and {len(rest)} more)" if rest else ""
    return f"{first.name} holds {held}{more}"


def _holds(gpu: Slot) -> str:
    parts = [_foreign(gpu)] if gpu.foreign else []
    if gpu.jobs:
        ours = _jobs(gpu.jobs)
        verb = "has" if len(gpu.jobs) == 1 else "have"
        parts.append(f"{ours[0].lower()}{ours[1:]} {verb} a part of it")
    return ", ".join(parts)
