"""Policy: whether a GPU matches a request at all, and whether it can take it now.

exclusive          a GPU without other jobs and without foreign processes that hold memory
shared, declared   enough free memory, and no other heavy start in progress
shared, undeclared a GPU without other jobs; no other job is placed beside it while it runs,
                   because the memory that it will take is unknown
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from functools import lru_cache

from msgspec import Struct

from monitor.facts.formats import GIB
from scheduler.facts.blockers import Blocker, BlockerCode, Tier, details
from scheduler.facts.jobs import Requirement
from scheduler.facts.plans import PlanPolicy, Slot
from scheduler.facts.units import size


class Traits(Struct, frozen=True):
    """Properties of a GPU that do not change. None = unknown."""

    uuid: str
    index: int
    model: str | None
    capability: tuple[int, int] | None
    power: float | None
    total_bytes: int | None


class Mismatch(Struct, frozen=True):
    """Shortage of a GPU for a request. field: of the request. has: None = unknown."""

    field: str
    wants: str
    has: str | None


def mismatch_of(requirement: Requirement, gpu: Slot | Traits) -> Mismatch | None:
    """The first mismatch; known mismatches come before unknown traits. None: it matches."""
    wants = requirement.memory_bytes
    if not has_gpu_constraints(requirement) and (
        wants is None or gpu.total_bytes is None or wants <= gpu.total_bytes
    ):
        return None
    return _first_mismatch(requirement, gpu if isinstance(gpu, Traits) else _traits(gpu))


def has_gpu_constraints(requirement: Requirement) -> bool:
    """Whether the request names a model, GPU, capability or power rank."""
    wanted = requirement
    names = wanted.model or wanted.gpu_uuid or wanted.among or wanted.capability
    return bool(names) or wanted.power is not None


@lru_cache(maxsize=8192)
def _first_mismatch(requirement: Requirement, gpu: Traits) -> Mismatch | None:
    mismatches = [mismatch for check in CHECKS if (mismatch := check(requirement, gpu)) is not None]
    return min(mismatches, key=lambda mismatch: mismatch.has is None, default=None)


def _traits(slot: Slot) -> Traits:
    return Traits(
        slot.gpu_uuid, slot.index, slot.model, slot.capability, slot.power, slot.total_bytes
    )


def constraints_text(requirement: Requirement) -> str:
    """The constraints on a GPU in words; "" = none."""
    parts = [
        requirement.model and f"of model {requirement.model}",
        requirement.capability and f"of compute capability {_version(requirement.capability)}",
        requirement.power is not None and f"of power rank {requirement.power:g}",
        requirement.memory_bytes is not None and f"with {size(requirement.memory_bytes)} of memory",
        requirement.gpu_uuid and f"named {requirement.gpu_uuid}",
        requirement.among and f"among the {len(requirement.among)} GPUs of its service",
    ]
    return ", ".join(part for part in parts if part)


def matches(wanted: str, model: str) -> bool:
    """Whether a GPU's model name has all words of `wanted`, or fits it as a pattern with * and ?.

    A pattern must fit the name from the start of one of its words to the end. The cost is bounded
    by the product of both lengths: fnmatch never backtracks over a star that has matched.
    """
    wanted, model = wanted.casefold().strip(), model.casefold()
    if "*" in wanted or "?" in wanted:
        pattern = wanted.replace("[", "[[]")
        starts = (0, *(space.end() for space in re.finditer(r"\s", model)))
        return any(fnmatchcase(model[start:], pattern) for start in starts)
    return set(re.findall(r"[a-z0-9]+", wanted)) <= set(re.findall(r"[a-z0-9]+", model))


def version(text: str | None) -> tuple[int, int] | None:
    """A compute capability as the driver writes it: "8.0"."""
    match = re.fullmatch(r"(\d+)(?:\.(\d+))?", (text or "").strip())
    return (int(match[1]), int(match[2] or 0)) if match else None


def suited(requirement: Requirement, gpus: Sequence[Traits]) -> int:
    """How many of these GPUs could take the request; unknown traits count as matching."""
    mismatches = [mismatch_of(requirement, gpu) for gpu in gpus]
    return sum(mismatch is None or mismatch.has is None for mismatch in mismatches)


def _uuid(requirement: Requirement, gpu: Traits) -> Mismatch | None:
    names = (requirement.gpu_uuid,) if requirement.gpu_uuid else requirement.among
    if not names or gpu.uuid in names:
        return None
    return Mismatch("on_gpu", " or ".join(names), f"GPU {gpu.index}")


def _model(requirement: Requirement, gpu: Traits) -> Mismatch | None:
    if not requirement.model or (gpu.model and matches(requirement.model, gpu.model)):
        return None
    return Mismatch("model", requirement.model, gpu.model or None)


def _capability(requirement: Requirement, gpu: Traits) -> Mismatch | None:
    wants, has = requirement.capability, gpu.capability
    if wants is None or (has is not None and has >= wants):
        return None
    return Mismatch("capability", f"compute capability {_version(wants)}", has and _version(has))


def _power(requirement: Requirement, gpu: Traits) -> Mismatch | None:
    wants, has = requirement.power, gpu.power
    if wants is None or (has is not None and has >= wants):
        return None
    return Mismatch("power", f"power rank {wants:g}", None if has is None else f"{has:g}")


def _memory(requirement: Requirement, gpu: Traits) -> Mismatch | None:
    wants, has = requirement.memory_bytes, gpu.total_bytes
    if wants is None or has is None or has >= wants:
        return None
    return Mismatch("gpu_memory", size(wants), size(has))


def _version(capability: tuple[int, int]) -> str:
    return ".".join(map(str, capability))


CHECKS = (_uuid, _model, _capability, _power, _memory)


# Looking up members of an enum is slow, and `reject_code` is called most of all.
GPU_UNHEALTHY, GPU_UNSUITABLE = BlockerCode.GPU_UNHEALTHY, BlockerCode.GPU_UNSUITABLE
BATCH_EXCLUSIVE = BlockerCode.BATCH_EXCLUSIVE
RESERVED_FOR, GPU_TAKEN = BlockerCode.RESERVED_FOR, BlockerCode.GPU_TAKEN
MEMORY_UNKNOWN, GPU_MEMORY = BlockerCode.MEMORY_UNKNOWN, BlockerCode.GPU_MEMORY
RAMPING = BlockerCode.RAMPING


def reject_code(
    requirement: Requirement, gpu: Slot, policy: PlanPolicy, job_id: int | None = None
) -> BlockerCode | None:
    """Why this GPU cannot take the job now, as a code. None: it can."""
    if not gpu.healthy:
        return GPU_UNHEALTHY
    if mismatch_of(requirement, gpu) is not None:
        return GPU_UNSUITABLE
    if gpu.closed:
        return gpu.closed[0].code
    if gpu.reserved_for is not None and gpu.reserved_for != job_id:
        return RESERVED_FOR
    if gpu.batch is not None and gpu.batch != requirement.batch:
        return BATCH_EXCLUSIVE
    alone, declared = requirement.exclusive, requirement.memory_bytes
    if gpu.exclusive or gpu.undeclared or (gpu.jobs and (alone or declared is None)):
        return GPU_TAKEN
    if alone and gpu.foreign:
        return GPU_TAKEN
    wants = needed_bytes(requirement, gpu, policy)
    if wants is not None and (gpu.free_bytes is None or gpu.free_bytes < wants):
        return MEMORY_UNKNOWN if gpu.free_bytes is None else GPU_MEMORY
    return RAMPING if gpu.ramping is not None and is_heavy(requirement, gpu) else None


def needed_bytes(requirement: Requirement, gpu: Slot, policy: PlanPolicy) -> int | None:
    """The memory that must be free; None = any.

    A whole GPU needs no figure. A job that declares no memory shares its GPU with no other job, so
    it needs none either on a GPU that has no figure, unless other processes are there.
    """
    if requirement.memory_bytes is not None:
        return requirement.memory_bytes
    if requirement.exclusive or (gpu.memory_unsupported and not gpu.foreign):
        return None
    return policy.undeclared_bytes


def rejections(
    requirement: Requirement, gpu: Slot, policy: PlanPolicy, job_id: int | None = None
) -> tuple[Blocker, ...]:
    """Every constraint that keeps the job off this GPU now; () = it can take the job.

    The first has the code of `reject_code`. Of a GPU that does not work or does not match, nothing
    else is said. Memory that only the jobs of a taken GPU hold is no constraint of its own.
    """
    if not gpu.healthy:
        return (_unhealthy(gpu),)
    missing = mismatch_of(requirement, gpu)
    if missing is not None:
        return (_unsuitable_gpu(missing, gpu),)
    blockers = list(gpu.closed)
    if gpu.reserved_for is not None and gpu.reserved_for != job_id:
        freed = details(case="freed")
        blockers.append(
            Blocker(code=RESERVED_FOR, gpu=gpu.index, jobs=(gpu.reserved_for,), details=freed)
        )
    if gpu.batch is not None and gpu.batch != requirement.batch:
        blockers.append(Blocker(code=BATCH_EXCLUSIVE, gpu=gpu.index, holder=f"batch {gpu.batch}"))
    neighbours = _neighbours(requirement, gpu)
    blockers += neighbours
    wants = needed_bytes(requirement, gpu, policy)
    if wants is not None and _lacks(gpu.without(gpu.jobs) if neighbours else gpu, wants):
        blockers.append(_too_little_memory(requirement, gpu, policy))
    if not neighbours and gpu.ramping is not None and is_heavy(requirement, gpu):
        blockers.append(_ramping(gpu))
    return tuple(blockers)


def _lacks(gpu: Slot, wants: int) -> bool:
    return gpu.free_bytes is None or gpu.free_bytes < wants


def _unhealthy(gpu: Slot) -> Blocker:
    why = gpu.problem or "it does not answer"
    return Blocker(
        code=GPU_UNHEALTHY,
        tier=Tier.MACHINE,
        gpu=gpu.index,
        holder=why,
        details=details(problem=why),
    )


def _neighbours(requirement: Requirement, gpu: Slot) -> list[Blocker]:
    """The jobs and the processes on the GPU that exclude this job."""
    alone, declared = requirement.exclusive, requirement.memory_bytes
    blockers = []
    if gpu.exclusive or gpu.undeclared or (gpu.jobs and (alone or declared is None)):
        case = "undeclared" if gpu.undeclared else "must declare"
        if gpu.exclusive or alone:
            case = "exclusive" if gpu.exclusive else "wants alone"
        blockers.append(
            Blocker(code=GPU_TAKEN, gpu=gpu.index, jobs=gpu.jobs, details=details(case=case))
        )
    if alone and gpu.foreign:
        facts = details(case="foreign", **_outside(gpu))
        holder = gpu.foreign[0].name
        blockers.append(Blocker(code=GPU_TAKEN, gpu=gpu.index, holder=holder, details=facts))
    return blockers


def _too_little_memory(requirement: Requirement, gpu: Slot, policy: PlanPolicy) -> Blocker:
    declared = requirement.memory_bytes
    wanted = size(policy.undeclared_bytes if declared is None else declared)
    if gpu.free_bytes is None:
        return Blocker(
            code=BlockerCode.MEMORY_UNKNOWN,
            tier=Tier.MACHINE,
            gpu=gpu.index,
            requested=wanted,
            details=details(unsupported=gpu.memory_unsupported, call=gpu.failed_call),
        )
    free = f"{_whole_gib(gpu.free_bytes)} of {size(gpu.total_bytes)}"
    return Blocker(
        code=BlockerCode.GPU_MEMORY,
        gpu=gpu.index,
        jobs=tuple(sorted(gpu.jobs)),
        requested=wanted,
        available=f"{free} on GPU {gpu.index}",
        holder=gpu.foreign[0].name if gpu.foreign else None,
        details=details(
            free=free,
            declared=declared is not None,
            growth=_whole_gib(gpu.growth_bytes) if gpu.growth_bytes >= GIB else None,
            **_outside(gpu),
        ),
    )


def _ramping(gpu: Slot) -> Blocker:
    """One heavy start at a time on a GPU: the memory of the previous one must be seen first."""
    return Blocker(
        code=BlockerCode.RAMPING,
        tier=Tier.MACHINE,
        gpu=gpu.index,
        jobs=() if gpu.ramping is None else (gpu.ramping,),
        until=gpu.ramps_until,
    )


def _unsuitable_gpu(missing: Mismatch, gpu: Slot) -> Blocker:
    return Blocker(
        code=BlockerCode.GPU_UNSUITABLE,
        tier=Tier.MACHINE,
        gpu=gpu.index,
        requested=missing.wants,
        details=details(has=missing.has),
    )


def is_heavy(requirement: Requirement, gpu: Slot) -> bool:
    """Whether it is a shared job with so much memory that its start must complete first."""
    wants = requirement.memory_bytes
    shares = not requirement.exclusive and wants is not None
    return shares and gpu.heavy_bytes is not None and (wants or 0) >= gpu.heavy_bytes


def can_never_match(requirement: Requirement, gpu: Slot) -> bool:
    """Whether the GPU is known to violate a constraint of the request."""
    missing = mismatch_of(requirement, gpu)
    return missing is not None and missing.has is not None


def is_undeclared(requirement: Requirement) -> bool:
    return requirement.memory_bytes is None and not requirement.exclusive


def free_memory(gpu: Slot) -> int:
    return -1 if gpu.free_bytes is None else gpu.free_bytes


def _outside(gpu: Slot) -> dict[str, str | int | None]:
    """Processes that hold memory of the GPU outside the queue, as facts of a blocker.

    foreign: in words. outside_bytes: of all such processes, None = one is unknown.
    """
    if not gpu.foreign:
        return {"foreign": None}
    first, *rest = gpu.foreign
    memory = "memory" if first.memory_bytes is None else size(first.memory_bytes)
    process = first.name if first.pid is None else f"{first.name} (PID {first.pid})"
    more = f" (and {len(rest)} more)" if rest else ""
    parts = [holder.memory_bytes for holder in gpu.foreign]
    known_bytes = [part for part in parts if part is not None]
    return {
        "foreign": f"{process} holds {memory}{more}",
        "outside_bytes": sum(known_bytes) if len(known_bytes) == len(parts) else None,
    }


def _whole_gib(value: int) -> str:
    """Rounded down to a GiB (a tenth below that), so that the figure does not flicker."""
    step = GIB if value >= GIB else GIB // 10
    return size(value // step * step)
