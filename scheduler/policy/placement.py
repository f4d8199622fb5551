"""Policy: which GPUs suit a request, and why the others don't.

exclusive          a GPU without any of our jobs and without foreign processes that hold memory
shared, declared   enough free memory; the GPU where least would be left (best fit)
shared, undeclared a GPU without our other jobs, the one with most free memory; while such a job
                   runs, nothing of ours is put beside it, as nobody knows what it will take
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from monitor.formats import GIB
from scheduler.blockers import Blocker, Tier
from scheduler.jobs import Requirement
from scheduler.plans import PlanPolicy, Slot
from scheduler.units import size

SHOWN = 3
NO_BARS: Mapping[str, Blocker] = {}


def choose(
    requirement: Requirement,
    gpus: Sequence[Slot],
    policy: PlanPolicy,
    bars: Mapping[str, Blocker] = NO_BARS,
    job_id: int | None = None,
) -> tuple[Slot, ...] | None:
    """The GPUs that this request gets, or None when too few suit it.

    `bars`: the GPUs that are not for it, whoever is there. `job_id`: for whom one may be kept.
    """
    fitting = [
        gpu
        for gpu in gpus
        if gpu.gpu_uuid not in bars and refusal(requirement, gpu, policy, job_id) is None
    ]
    if len(fitting) < requirement.gpus:
        return None
    sign = -1 if requirement.memory_bytes is None else 1
    fitting.sort(key=lambda gpu: (sign * _room(gpu), gpu.index, gpu.gpu_uuid))
    return tuple(fitting[: requirement.gpus])


def taken(gpu: Slot, job_id: int, requirement: Requirement) -> Slot:
    """The GPU once the job has been placed on it."""
    free = gpu.free_bytes
    if free is not None and requirement.memory_bytes is not None:
        free = max(0, free - requirement.memory_bytes)
    return replace(
        gpu,
        free_bytes=free,
        jobs=(*gpu.jobs, job_id),
        exclusive=gpu.exclusive or requirement.exclusive,
        undeclared=gpu.undeclared or _undeclared(requirement),
        kept_for=None if gpu.kept_for == job_id else gpu.kept_for,
    )


def explain(
    requirement: Requirement,
    gpus: Sequence[Slot],
    policy: PlanPolicy,
    bars: Mapping[str, Blocker] = NO_BARS,
) -> tuple[Blocker, ...]:
    """Why too few of `gpus` suit the request, the nearest misses first; () when enough do."""
    found = [(gpu, bars.get(gpu.gpu_uuid) or refusal(requirement, gpu, policy)) for gpu in gpus]
    if sum(why is None for _, why in found) >= requirement.gpus:
        return ()
    refused = [(gpu, why) for gpu, why in found if why is not None]
    refused.sort(key=_miss)
    reasons = [why for _, why in refused[:SHOWN]]
    if requirement.gpus > 1 or not reasons:
        reasons.insert(0, _too_few(requirement, len(gpus) - len(refused)))
    rest = len(refused) - SHOWN
    if rest > 0:
        others = "The other GPU" if rest == 1 else f"The other {rest} GPUs"
        text = f"{others} can't take it either."
        reasons.append(Blocker(code="OtherGpus", text=text, available=str(rest)))
    return tuple(reasons)


def refusal(
    requirement: Requirement, gpu: Slot, policy: PlanPolicy, job_id: int | None = None
) -> Blocker | None:
    """Why this GPU can't take the job now; None when it can."""
    if not gpu.healthy:
        why = gpu.problem or "it does not answer"
        text = f"{_gpu(gpu)} can't be used: {why}"
        return Blocker(code="GpuUnhealthy", tier=Tier.MACHINE, text=text, holder=why)
    if gpu.closed:
        return gpu.closed[0]
    if gpu.kept_for is not None and gpu.kept_for != job_id:
        holder = f"job {gpu.kept_for}"
        text = f"{_gpu(gpu)} was freed for {holder} and is kept for it."
        return Blocker(code="ReservedFor", text=text, available=_gpu(gpu), holder=holder)
    return _neighbours(requirement, gpu) or _memory(requirement, gpu, policy)


def _neighbours(requirement: Requirement, gpu: Slot) -> Blocker | None:
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
    elif _undeclared(requirement) and gpu.jobs:
        text = f"{ours} {_run(gpu.jobs)} on {_gpu(gpu)}; say how much memory you need to share it."
    else:
        return None
    return _taken(gpu, text, holder=ours[0].lower() + ours[1:])


def _memory(requirement: Requirement, gpu: Slot, policy: PlanPolicy) -> Blocker | None:
    wanted = requirement.memory_bytes
    if wanted is None:
        # An exclusive job takes what there is; a shared one needs at least something.
        if requirement.exclusive:
            return None
        wanted = policy.undeclared_bytes
    if gpu.free_bytes is None:
        text = f"How much memory is free on {_gpu(gpu)} is not known."
        return Blocker(
            code="MemoryUnknown",
            tier=Tier.MACHINE,
            text=text,
            requested=size(wanted),
            available=_gpu(gpu),
        )
    if gpu.free_bytes >= wanted:
        return None
    free = f"{_floor(gpu.free_bytes)} of {size(gpu.total_bytes)}"
    asks = "a job needs at least" if requirement.memory_bytes is None else "you ask for"
    holds = _holds(gpu)
    return Blocker(
        code="GpuMemory",
        text=f"{_gpu(gpu)} has {free} free, {asks} {size(wanted)}{'; ' if holds else ''}{holds}.",
        requested=size(wanted),
        available=f"{free} on {_gpu(gpu)}",
        holder=", ".join([*(h.name for h in gpu.foreign[:1]), *(f"job {j}" for j in gpu.jobs)])
        or None,
    )


def _taken(gpu: Slot, text: str, *, holder: str) -> Blocker:
    return Blocker(code="GpuTaken", text=text, available=_gpu(gpu), holder=holder)


def _too_few(requirement: Requirement, fitting: int) -> Blocker:
    has = "none" if fitting == 0 else str(fitting)
    asked = "1 GPU" if requirement.gpus == 1 else f"{requirement.gpus} GPUs"
    text = f"You ask for {asked}; {has} can take the job now."
    return Blocker(code="GpuCount", text=text, requested=asked, available=str(fitting))


def _miss(refused: tuple[Slot, Blocker]) -> tuple[bool, bool, int, int]:
    """How far a GPU is from taking the job: too little room is nearer than taken, or broken."""
    gpu, why = refused
    return (not gpu.healthy, why.code == "GpuTaken", -_room(gpu), gpu.index)


def _undeclared(requirement: Requirement) -> bool:
    return requirement.memory_bytes is None and not requirement.exclusive


def _room(gpu: Slot) -> int:
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
