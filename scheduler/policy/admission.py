"""Policy: which requests can never be met on this machine, and are refused with the numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from monitor.policy import capability
from monitor.readings import GpuReading, Health
from scheduler.jobs import Refusal, Requirement
from scheduler.policy.suiting import Traits, suited, version, wishes
from scheduler.units import size


def check(
    requirement: Requirement,
    gpus: Sequence[GpuReading],
    powers: Mapping[str, float] | None = None,
) -> list[Refusal]:
    """Name every part of `requirement` that these GPUs, all idle, could not give.

    No GPU known means that none can be read now: nothing is refused, the job waits. `powers`: the
    ranks that the settings give, which win.
    """
    if requirement.gpus < 0:
        return [Refusal(field="gpus", text="The number of GPUs can't be negative.")]
    if requirement.gpus == 0:
        return _check_without_gpu(requirement)
    if not gpus:
        return []
    found = [
        *_check_count(requirement, gpus),
        *_check_memory(requirement, gpus),
        *_check_traits(requirement, [_traits(gpu, powers) for gpu in gpus]),
    ]
    return found or _check_together(requirement, [_traits(gpu, powers) for gpu in gpus])


def refuse_without_gpus(requirement: Requirement, reason: str) -> list[Refusal]:
    """Refuse a job that asks for GPUs on a machine that is known to have none."""
    if requirement.gpus <= 0:
        return check(requirement, ())
    asked = _count(requirement.gpus)
    return [Refusal(field="gpus", text=f"You ask for {asked}; this machine has none: {reason}")]


def _check_without_gpu(requirement: Requirement) -> list[Refusal]:
    refusals = []
    if requirement.memory_bytes is not None:
        text = "You ask for GPU memory without a GPU; ask for at least one GPU."
        refusals.append(Refusal(field="gpu_memory", text=text))
    if requirement.exclusive:
        text = "You ask for exclusive GPUs without a GPU; ask for at least one GPU."
        refusals.append(Refusal(field="exclusive", text=text))
    return refusals


def _check_count(requirement: Requirement, gpus: Sequence[GpuReading]) -> list[Refusal]:
    if requirement.gpus <= len(gpus):
        return []
    has = "1 GPU" if len(gpus) == 1 else f"{len(gpus)} GPUs"
    text = f"You ask for {requirement.gpus} GPUs; this machine has {has}."
    return [Refusal(field="gpus", text=text)]


def _check_memory(requirement: Requirement, gpus: Sequence[GpuReading]) -> list[Refusal]:
    """A GPU that doesn't say its size (or is lost now) may be large enough."""
    wanted = requirement.memory_bytes
    if wanted is None:
        return []
    totals = [None if g.health is Health.LOST else g.memory_total_bytes for g in gpus]
    known = sorted((total for total in totals if total is not None), reverse=True)
    possible = totals.count(None) + sum(total >= wanted for total in known)
    if wanted > 0 and (possible >= requirement.gpus or not known):
        return []
    return [Refusal(field="gpu_memory", text=_memory_text(wanted, known, possible))]


def _memory_text(wanted: int, known: Sequence[int], possible: int) -> str:
    if wanted <= 0:
        return "The GPU memory must be more than 0."
    asked = f"You ask for {size(wanted)} of GPU memory"
    if possible == 0:
        return f"{asked}; the largest GPU here has {size(known[0])}."
    return f"{asked} on each GPU; only {possible} of the GPUs here have that much."


def _check_traits(requirement: Requirement, gpus: Sequence[Traits]) -> list[Refusal]:
    """Each wish for itself. A GPU that doesn't say what it is may be the one."""
    found = []
    for field, alone in _apart(requirement).items():
        enough = min(requirement.gpus, len(gpus))
        possible = suited(alone, gpus)
        if possible < enough:
            found.append(Refusal(field=field, text=_lack_text(field, alone, gpus, possible)))
    return found


def _check_together(requirement: Requirement, gpus: Sequence[Traits]) -> list[Refusal]:
    """Each wish can be met, but not all by the same GPUs."""
    possible = suited(requirement, gpus)
    if possible >= requirement.gpus:
        return []
    which = "no GPU here is all of that"
    if possible:
        which = f"only {possible} of the {len(gpus)} GPUs here {'is' if possible == 1 else 'are'}"
    text = f"You ask for {_count(requirement.gpus)} {wishes(requirement)}; {which}."
    return [Refusal(field=next(iter(_apart(requirement)), "gpus"), text=text)]


def _apart(requirement: Requirement) -> dict[str, Requirement]:
    """Each wish for a kind of GPU alone, by the field that asks it."""
    gpus = requirement.gpus
    found = {
        "model": requirement.model and Requirement(gpus=gpus, model=requirement.model),
        "capability": requirement.capability
        and Requirement(gpus=gpus, capability=requirement.capability),
        "power": requirement.power is not None and Requirement(gpus=gpus, power=requirement.power),
        "on_gpu": requirement.gpu_uuid and Requirement(gpus=gpus, gpu_uuid=requirement.gpu_uuid),
    }
    return {field: alone for field, alone in found.items() if alone}


def _lack_text(field: str, alone: Requirement, gpus: Sequence[Traits], possible: int) -> str:
    asked = f"You ask for {_count(alone.gpus)} {wishes(alone)}"
    if field == "on_gpu":
        return f"{asked}; " + ("it is a single one." if possible else "it is not here.")
    if possible:
        return f"{asked}; this machine has {possible}."
    return f"{asked}; here {_there(field, gpus)}."


def _there(field: str, gpus: Sequence[Traits]) -> str:
    """What there is instead."""
    if field == "model":
        return f"there is {', '.join(sorted({gpu.model or 'an unknown one' for gpu in gpus}))}"
    if field == "capability":
        highest = max((gpu.capability for gpu in gpus if gpu.capability), default=(0, 0))
        return f"the highest is {highest[0]}.{highest[1]}"
    return f"the highest is {max((gpu.power or 0 for gpu in gpus), default=0):g}"


def _traits(gpu: GpuReading, powers: Mapping[str, float] | None) -> Traits:
    """A GPU that does not answer may be larger than nothing."""
    return Traits(
        uuid=gpu.uuid,
        index=gpu.index,
        model=gpu.name,
        capability=version(gpu.compute_capability),
        power=capability.of(gpu, powers).power,
        total_bytes=None if gpu.health is Health.LOST else gpu.memory_total_bytes,
    )


def _count(gpus: int) -> str:
    return "a GPU" if gpus == 1 else f"{gpus} GPUs"
