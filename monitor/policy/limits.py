"""What may be used of a machine: the least of all that bounds it, and which GPUs are ours."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from math import floor

from monitor.limits import Bound, Limits
from monitor.readings import GpuReading

NOT_OURS = "NVIDIA_VISIBLE_DEVICES leaves this GPU out, so no job gets it."
_SUFFIXES = {
    "": 1.0, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15,
    "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50,
}  # fmt: skip


def least(bounds: Iterable[Bound]) -> Bound | None:
    """The tightest; of equal ones the first."""
    return min(bounds, key=lambda bound: bound.value, default=None)


def quantity(text: str) -> float | None:
    """A number as Kubernetes writes it: `2`, `500m`, `1.5Gi`, `1e9`; None when it is none."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?(?:[eE]\d+)?)(m|[kMGTP]|[KMGTP]i)?", text.strip())
    return float(match[1]) * _SUFFIXES[match[2] or ""] if match else None


def visible(value: str | None) -> tuple[str, ...] | None:
    """What NVIDIA_VISIBLE_DEVICES names: None = all, () = none."""
    if value is None or value.strip() in {"all", "void", ""}:
        return None
    names = tuple(name.strip() for name in value.split(",") if name.strip())
    return () if names == ("none",) else names


def hidden(gpus: Sequence[GpuReading], limits: Limits) -> frozenset[str]:
    """UUIDs of the GPUs that are not ours.

    A container's runtime mostly hides them itself, and numbers the others anew. Then no more are
    seen than are named, and nothing is left to hide.
    """
    names = limits.visible_gpus
    if names is None or (names and len(gpus) <= len(names)):
        return frozenset()
    return frozenset(gpu.uuid for gpu in gpus if not _is_named(gpu, names))


def _is_named(gpu: GpuReading, names: Sequence[str]) -> bool:
    """By index, by UUID, by a UUID's beginning, or by a part of it (a MIG instance)."""
    return any(
        name == str(gpu.index) or gpu.uuid.startswith(name) or gpu.uuid in name for name in names
    )


def cpu_places(wanted: int, limits: Limits) -> int:
    """How many jobs without a GPU may run at once: never more than there are CPUs for."""
    return wanted if limits.cpus is None else min(wanted, max(1, floor(limits.cpus)))


def clamped(total: int | None, free: int | None, limits: Limits) -> tuple[int | None, int | None]:
    """The memory's total and what is available of it, of the machine, cut to the limits."""
    bound = limits.memory_bytes
    if bound is None:
        return total, free
    room = bound if limits.memory_used_bytes is None else max(0, bound - limits.memory_used_bytes)
    return (
        bound if total is None else min(total, bound),
        None if free is None else min(free, room),
    )
