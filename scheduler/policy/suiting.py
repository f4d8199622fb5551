"""Policy: which GPUs could ever take a request, by what they are, whoever is on them now."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from scheduler.jobs import Requirement
from scheduler.plans import Slot
from scheduler.units import size


@dataclass(frozen=True, slots=True)
class Traits:
    """What a GPU is. None = unknown."""

    uuid: str
    index: int
    model: str | None
    capability: tuple[int, int] | None
    power: float | None
    total_bytes: int | None


@dataclass(frozen=True, slots=True)
class Lack:
    """What a GPU lacks for a request. `field`: of the request. `has` None = nobody knows."""

    field: str
    wants: str
    has: str | None


def lack(requirement: Requirement, gpu: Slot | Traits) -> Lack | None:
    """The first thing that it lacks, what is known to be missing before what is not known."""
    wants = requirement.memory_bytes
    if not is_choosy(requirement) and (
        wants is None or gpu.total_bytes is None or wants <= gpu.total_bytes
    ):
        return None
    return _lack(requirement, gpu if isinstance(gpu, Traits) else _traits(gpu))


def is_choosy(requirement: Requirement) -> bool:
    """Whether it matters which GPU it is."""
    asked = requirement
    return bool(asked.model or asked.gpu_uuid or asked.capability) or asked.power is not None


@lru_cache(maxsize=8192)
def _lack(requirement: Requirement, gpu: Traits) -> Lack | None:
    lacks = [found for check in CHECKS if (found := check(requirement, gpu)) is not None]
    return min(lacks, key=lambda found: found.has is None, default=None)


def _traits(slot: Slot) -> Traits:
    return Traits(
        slot.gpu_uuid, slot.index, slot.model, slot.capability, slot.power, slot.total_bytes
    )


def wishes(requirement: Requirement) -> str:
    """What the request wants a GPU to be, in words; "" when any will do."""
    parts = [
        requirement.model and f"of model {requirement.model}",
        requirement.capability and f"of compute capability {_version(requirement.capability)}",
        requirement.power is not None and f"of power rank {requirement.power:g}",
        requirement.memory_bytes is not None and f"with {size(requirement.memory_bytes)} of memory",
        requirement.gpu_uuid and f"named {requirement.gpu_uuid}",
    ]
    return ", ".join(part for part in parts if part)


def matches(wanted: str, model: str) -> bool:
    """All words stand in the name as words of their own; or a pattern with * or ? fits from the
    beginning of one of its words to the end."""
    wanted, model = wanted.casefold().strip(), model.casefold()
    if "*" in wanted or "?" in wanted:
        pattern = re.escape(wanted).replace(r"\*", ".*").replace(r"\?", ".")
        return re.fullmatch(rf"(.*\s)?{pattern}", model) is not None
    return set(re.findall(r"[a-z0-9]+", wanted)) <= set(re.findall(r"[a-z0-9]+", model))


def version(text: str | None) -> tuple[int, int] | None:
    """A compute capability as the driver writes it: "8.0"."""
    match = re.fullmatch(r"(\d+)(?:\.(\d+))?", (text or "").strip())
    return (int(match[1]), int(match[2] or 0)) if match else None


def suited(requirement: Requirement, gpus: Sequence[Traits]) -> int:
    """How many of these could take it, those of which that is not known among them."""
    lacks = [lack(requirement, gpu) for gpu in gpus]
    return sum(found is None or found.has is None for found in lacks)


def _uuid(requirement: Requirement, gpu: Traits) -> Lack | None:
    if not requirement.gpu_uuid or requirement.gpu_uuid == gpu.uuid:
        return None
    return Lack("on_gpu", requirement.gpu_uuid, f"GPU {gpu.index}")


def _model(requirement: Requirement, gpu: Traits) -> Lack | None:
    if not requirement.model or (gpu.model and matches(requirement.model, gpu.model)):
        return None
    return Lack("model", requirement.model, gpu.model or None)


def _capability(requirement: Requirement, gpu: Traits) -> Lack | None:
    wants, has = requirement.capability, gpu.capability
    if wants is None or (has is not None and has >= wants):
        return None
    return Lack("capability", f"compute capability {_version(wants)}", has and _version(has))


def _power(requirement: Requirement, gpu: Traits) -> Lack | None:
    wants, has = requirement.power, gpu.power
    if wants is None or (has is not None and has >= wants):
        return None
    return Lack("power", f"power rank {wants:g}", None if has is None else f"{has:g}")


def _memory(requirement: Requirement, gpu: Traits) -> Lack | None:
    wants, has = requirement.memory_bytes, gpu.total_bytes
    if wants is None or has is None or has >= wants:
        return None
    return Lack("gpu_memory", size(wants), size(has))


def _version(capability: tuple[int, int]) -> str:
    return ".".join(map(str, capability))


CHECKS = (_uuid, _model, _capability, _power, _memory)
