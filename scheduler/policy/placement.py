"""Policy: which GPUs a request gets, and why too few can take it.

Of those that can (refusing.py) a job that declares its memory gets the ones where least is left
(best fit), one that does not the ones with most. Where a job that shares would fit about as well,
it gets the ones with most of their time left.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from scheduler.blockers import Blocker, Tier
from scheduler.jobs import Requirement
from scheduler.plans import PlanPolicy, Slot
from scheduler.policy.refusing import (
    is_heavy,
    is_known_to_lack,
    refusal,
    room,
    undeclared,
    verdict,
)
from scheduler.policy.suiting import wishes

SHOWN = 3
# Within this part of a GPU's memory one fit is as good as another.
ALIKE = 0.25
# How busy a GPU is at most whose users won't notice one more, and at least where all will.
QUIET_PCT, BUSY_PCT = 30.0, 70.0
# What keeps a job off a GPU, where several are counted together.
WORDS = {
    "GpuUnhealthy": "not healthy",
    "GpuUnsuitable": "of unknown kind",
    "GpuTaken": "taken",
    "GpuMemory": "too full",
    "MemoryUnknown": "of unknown memory",
    "GpuLocked": "locked",
    "GpuPaused": "paused",
    "GpuQuarantined": "in quarantine",
    "ComputeProhibited": "closed by its compute mode",
    "ComputeExclusive": "taken by one process",
    "OwnerPresent": "used by somebody in person",
    "OutsideWindow": "outside your agreed time",
    "ReservedFor": "reserved",
    "Ramping": "just given a job",
    "Pressure": "too busy",
    "UtilTarget": "busy enough",
}
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
        if gpu.gpu_uuid not in bars and verdict(requirement, gpu, policy, job_id) is None
    ]
    if len(fitting) < requirement.gpus:
        return None
    sign = -1 if requirement.memory_bytes is None else 1
    fitting.sort(key=lambda gpu: (sign * room(gpu), gpu.index, gpu.gpu_uuid))
    if requirement.shares and len(fitting) > requirement.gpus:
        worst = room(fitting[requirement.gpus - 1])
        fitting.sort(key=lambda gpu: (room(gpu) > worst + _alike(gpu), _crowd(gpu)))
    return tuple(fitting[: requirement.gpus])


def _alike(gpu: Slot) -> float:
    return ALIKE * (gpu.total_bytes or 0)


def _crowd(gpu: Slot) -> int:
    """How much a job would meet others there: 0 hardly, 1 somewhat or unknown, 2 all the time."""
    if not gpu.jobs and not gpu.foreign:
        return 0
    if gpu.use_pct is None or gpu.use_pct >= QUIET_PCT:
        return 2 if (gpu.use_pct or 0.0) > BUSY_PCT else 1
    return 1 if gpu.unsettled else 0


def taken(gpu: Slot, job_id: int, requirement: Requirement) -> Slot:
    """The GPU once the job has been placed on it."""
    free = gpu.free_bytes
    if free is not None and requirement.memory_bytes is not None:
        free = max(0, free - requirement.memory_bytes)
    return replace(
        gpu,
        free_bytes=free,
        jobs=(*gpu.jobs, job_id),
        exclusive=gpu.exclusive or requirement.exclusive or gpu.lone,
        undeclared=gpu.undeclared or undeclared(requirement),
        held_bytes=(*held_bytes(gpu), requirement.memory_bytes or 0),
        ramping=job_id if is_heavy(requirement, gpu) else gpu.ramping,
        unsettled=True,
    )


def left(gpu: Slot, job_ids: Collection[int]) -> Slot:
    """The GPU once these jobs have left it."""
    stay = [pair for pair in zip(gpu.jobs, held_bytes(gpu), strict=True) if pair[0] not in job_ids]
    back = sum(held_bytes(gpu)) - sum(held for _, held in stay)
    return replace(
        gpu,
        free_bytes=None if gpu.free_bytes is None else gpu.free_bytes + back,
        jobs=tuple(job for job, _ in stay),
        held_bytes=tuple(held for _, held in stay),
        # Such jobs are alone.
        exclusive=gpu.exclusive and len(stay) == len(gpu.jobs),
        undeclared=gpu.undeclared and len(stay) == len(gpu.jobs),
        ramping=None if gpu.ramping in job_ids else gpu.ramping,
    )


def held_bytes(gpu: Slot) -> tuple[int, ...]:
    """What each of its jobs keeps from others; 0 where that is not known."""
    return (*gpu.held_bytes, *[0] * (len(gpu.jobs) - len(gpu.held_bytes)))


def explain(
    requirement: Requirement,
    gpus: Sequence[Slot],
    policy: PlanPolicy,
    bars: Mapping[str, Blocker] = NO_BARS,
    job_id: int | None = None,
) -> tuple[Blocker, ...]:
    """Why too few of `gpus` suit the request, the nearest misses first; () when enough do."""
    able = [gpu for gpu in gpus if not is_known_to_lack(requirement, gpu)]
    if len(able) < requirement.gpus and gpus:
        return (_infeasible(requirement, len(able), len(gpus)),)
    found = [(gpu, verdict(requirement, gpu, policy, job_id)) for gpu in able]
    refused = [(gpu, code) for gpu, code in found if code is not None or gpu.gpu_uuid in bars]
    if len(able) - len(refused) >= requirement.gpus > 0:
        return ()
    refused.sort(key=_miss)
    reasons: list[Blocker] = []
    # One more takes no more room than to say that there is one.
    shown = SHOWN + 1 if len(refused) == SHOWN + 1 else SHOWN
    for gpu, _ in refused[:shown]:
        first = _first(refusal(requirement, gpu, policy, job_id), bars.get(gpu.gpu_uuid))
        reasons += gpu.closed if first in gpu.closed else [first]
    if requirement.gpus > 1 or not reasons:
        reasons.insert(0, _too_few(requirement, len(able) - len(refused)))
    if rest := [code or bars[gpu.gpu_uuid].code for gpu, code in refused[shown:]]:
        reasons.append(_others(rest))
    if len(able) < len(gpus) and not requirement.gpu_uuid:
        reasons.append(_unsuitable(requirement, len(able), len(gpus)))
    return tuple(reasons)


def _others(codes: Sequence[str]) -> Blocker:
    """Those that are not told one by one, by what keeps the job off them."""
    counts = Counter(WORDS.get(code, code) for code in codes)
    in_order = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    why = ", ".join(f"{count} {word}" for word, count in in_order)
    text = f"The other {len(codes)} GPUs can't take it either: {why}."
    return Blocker(code="OtherGpus", text=text, available=why)


def _unsuitable(requirement: Requirement, able: int, all_: int) -> Blocker:
    wanted, there = wishes(requirement), f"{able} of {all_}"
    return Blocker(
        code="GpuUnsuitable",
        text=f"Only {there} GPUs here are what you ask for ({wanted}).",
        requested=wanted,
        available=there,
    )


def _first(refused: Blocker | None, barred: Blocker | None) -> Blocker:
    """The more telling one; one there is."""
    found = [blocker for blocker in (refused, barred) if blocker is not None]
    return min(found, key=lambda blocker: blocker.tier)


def _infeasible(requirement: Requirement, able: int, all_: int) -> Blocker:
    asked = "1 GPU" if requirement.gpus == 1 else f"{requirement.gpus} GPUs"
    asked = f"{asked} {wishes(requirement)}".strip()
    there = "none" if able == 0 else f"only {able}"
    text = f"You ask for {asked}; of the {all_} here {there} will ever do."
    return Blocker(
        code="Infeasible",
        tier=Tier.PERSON,
        text=text,
        requested=asked,
        available=f"{able} of {all_}",
    )


def _too_few(requirement: Requirement, fitting: int) -> Blocker:
    has = "none" if fitting == 0 else str(fitting)
    asked = "1 GPU" if requirement.gpus == 1 else f"{requirement.gpus} GPUs"
    text = f"You ask for {asked}; {has} can take the job now."
    return Blocker(code="GpuCount", text=text, requested=asked, available=str(fitting))


def _miss(refused: tuple[Slot, str | None]) -> tuple[bool, bool, int, int]:
    """How far a GPU is from taking the job: too little room is nearer than taken, or broken."""
    gpu, code = refused
    return (not gpu.healthy, code == "GpuTaken", -_roughly(gpu), gpu.index)


def _roughly(gpu: Slot) -> int:
    """Its room in eighths: who is told first does not change with each reading."""
    return -1 if gpu.free_bytes is None else 8 * gpu.free_bytes // (gpu.total_bytes or 1)
