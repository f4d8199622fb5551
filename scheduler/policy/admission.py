"""Policy: which requests can never be met on this machine, and are refused with the numbers."""

from __future__ import annotations

from collections.abc import Sequence

from monitor.readings import GpuReading, Health
from scheduler.jobs import Refusal, Requirement
from scheduler.units import size


def check(requirement: Requirement, gpus: Sequence[GpuReading]) -> list[Refusal]:
    """Name every part of `requirement` that these GPUs, all idle, could not give.

    No GPU known means that none can be read now: nothing is refused, the job waits.
    """
    if requirement.gpus < 0:
        return [Refusal(field="gpus", text="The number of GPUs can't be negative.")]
    if requirement.gpus == 0:
        return _check_without_gpu(requirement)
    return [*_check_count(requirement, gpus), *_check_memory(requirement, gpus)] if gpus else []


def refuse_without_gpus(requirement: Requirement, reason: str) -> list[Refusal]:
    """Refuse a job that asks for GPUs on a machine that is known to have none."""
    if requirement.gpus <= 0:
        return check(requirement, ())
    asked = "a GPU" if requirement.gpus == 1 else f"{requirement.gpus} GPUs"
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
