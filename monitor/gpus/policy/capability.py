"""Capability of a GPU (generation, relative strength), and the limits of a machine.

Memory of GPUs of which the driver gives no figure, because they share the memory of the host.

Their total is stated by an operator. Their used memory is that of the listed processes, and what
the host uses besides counts as reserved, since it is memory that no job on the GPU can get.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from math import floor

from msgspec import Struct
from msgspec.structs import replace

from monitor.facts.readings import GpuReading, HostReading, Limits, LimitSource, ProcessReading

# Approximate TFLOPS of 16-bit matrix operations from the data sheets, for ranking only.
POWERS: Mapping[str, float] = {
    "B200": 4500,
    "H200": 2500,
    "H100": 2000,
    "L40S": 733,
    "A100": 624,
    "RTX 5090": 419,
    "L40": 362,
    "RTX 4090": 330,
    "A30": 330,
    "RTX A6000": 310,
    "A40": 299,
    "A10": 250,
    "L4": 242,
    "RTX 3090": 142,
    "V100": 125,
    "T4": 65,
    "P100": 21,
}
# 16-bit matrix operations per 32-bit operation, by compute capability.
_MATRIX = {"7.0": 8.0, "7.5": 8.0, "8.0": 32.0, "9.0": 30.0, "10.0": 30.0, "10.3": 30.0}
_GENERATIONS = {
    "3": "Kepler",
    "5": "Maxwell",
    "6": "Pascal",
    "7.0": "Volta",
    "7.5": "Turing",
    "8.9": "Ada Lovelace",
    "8": "Ampere",
    "9": "Hopper",
    "10": "Blackwell",
    "12": "Blackwell",
}


class Capability(Struct, frozen=True):
    """None = unknown.

    `power_estimated`: computed from cores and clock, because the model is not in the table.
    """

    architecture: str | None
    power: float | None
    power_estimated: bool


def of(gpu: GpuReading, own: Mapping[str, float] | None = None) -> Capability:
    """The capability of `gpu`; `own`: ranks from the settings, which take precedence."""
    strength = rank(gpu.name or "", {**POWERS, **(own or {})})
    power = strength if strength is not None else estimate(gpu)
    return Capability(architecture(gpu), power, strength is None and power is not None)


def rank(name: str, table: Mapping[str, float]) -> float | None:
    """The rank of the longest entry whose words all occur in the name."""
    words = set(_words(name))
    fitting = [key for key in table if _words(key) and words.issuperset(_words(key))]
    return table[max(fitting, key=lambda key: (len(_words(key)), len(key)))] if fitting else None


def estimate(gpu: GpuReading) -> float | None:
    """From cores and clock: two operations per cycle, times the matrix factor of the generation."""
    if not gpu.cores or not gpu.max_sm_clock_mhz:
        return None
    plain_tflops = 2 * gpu.cores * gpu.max_sm_clock_mhz / 1e6
    return float(f"{plain_tflops * _matrix(gpu.compute_capability or ''):.2g}")


def architecture(gpu: GpuReading) -> str | None:
    """The name of the generation: from the driver, or by compute capability."""
    cc = gpu.compute_capability or ""
    return gpu.architecture or _GENERATIONS.get(cc) or _GENERATIONS.get(cc.partition(".")[0])


def _matrix(cc: str) -> float:
    """4 for GeForce and workstation GPUs since Ampere; none before Volta."""
    major = cc.partition(".")[0]
    if major.isdigit() and int(major) < 7:
        return 1.0
    return _MATRIX.get(cc, 4.0)


def _words(name: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", name.casefold())


NOT_OURS = "NVIDIA_VISIBLE_DEVICES leaves this GPU out, so no job gets it."
_SUFFIXES = {
    "": 1.0, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15,
    "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50,
}  # fmt: skip


def least(bounds: Iterable[LimitSource]) -> LimitSource | None:
    """The lowest limit; the first one of equals."""
    return min(bounds, key=lambda bound: bound.value, default=None)


def quantity(text: str) -> float | None:
    """A Kubernetes quantity: `2`, `500m`, `1.5Gi`, `1e9`; None if it is invalid."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?(?:[eE]\d+)?)(m|[kMGTP]|[KMGTP]i)?", text.strip())
    return float(match[1]) * _SUFFIXES[match[2] or ""] if match else None


def visible(value: str | None) -> tuple[str, ...] | None:
    """The GPUs that NVIDIA_VISIBLE_DEVICES names: None = all, () = none."""
    if value is None or value.strip() in {"all", "void", ""}:
        return None
    names = tuple(name.strip() for name in value.split(",") if name.strip())
    return () if names == ("none",) else names


def hidden(gpus: Sequence[GpuReading], limits: Limits) -> frozenset[str]:
    """UUIDs of the GPUs outside NVIDIA_VISIBLE_DEVICES.

    Container runtimes usually hide these GPUs themselves and renumber the others. Then no more GPUs
    are visible than are named, and nothing is hidden here.
    """
    names = limits.visible_gpus
    if names is None or (names and len(gpus) <= len(names)):
        return frozenset()
    return frozenset(gpu.uuid for gpu in gpus if not _is_named(gpu, names))


def _is_named(gpu: GpuReading, names: Sequence[str]) -> bool:
    """By index, UUID, the beginning of a UUID, or a part of it (a MIG instance)."""
    return any(
        name == str(gpu.index) or gpu.uuid.startswith(name) or gpu.uuid in name for name in names
    )


def cpu_places(wanted: int, limits: Limits) -> int:
    """Number of jobs without a GPU that may run at once, at most one per CPU.

    In a pod, CPUs above its request belong to other pods as soon as the node is busy.
    """
    bounds = [cpus for cpus in (limits.cpus, limits.cpus_requested) if cpus is not None]
    return min([wanted, *(max(1, floor(cpus)) for cpus in bounds)])


def clamped(total: int | None, free: int | None, limits: Limits) -> tuple[int | None, int | None]:
    """Total and available memory of the machine, clamped to the limits."""
    bound = limits.memory_bytes
    if bound is None:
        return total, free
    room = bound if limits.memory_used_bytes is None else max(0, bound - limits.memory_used_bytes)
    return (
        bound if total is None else min(total, bound),
        None if free is None else min(free, room),
    )


GIB = 1024**3
TOTAL, USED = "memory_total_bytes", "memory_used_bytes"


def has_no_figure(gpu: GpuReading) -> bool:
    """Whether the GPU or its driver has no figure for memory, and none was stated."""
    lacking = gpu.unsupported or ()
    return (TOTAL in lacking and gpu.memory_total_bytes is None) or (
        USED in lacking and gpu.memory_used_bytes is None
    )


def is_stated(gpu: GpuReading) -> bool:
    """Whether its total comes from an operator."""
    return TOTAL in (gpu.unsupported or ()) and gpu.memory_total_bytes is not None


def with_stated_memory(
    gpus: Sequence[GpuReading],
    processes: Iterable[ProcessReading],
    host: HostReading,
    stated_gib: Mapping[str, float],
) -> tuple[GpuReading, ...]:
    """The readings with the stated figures where the driver has none.

    stated_gib: by UUID, or by words of the name of the model.
    """
    if not stated_gib or not any(has_no_figure(gpu) for gpu in gpus):
        return tuple(gpus)
    listed: dict[str, list[int | None]] = {}
    for process in processes:
        listed.setdefault(process.gpu_uuid, []).append(process.memory_bytes)
    return tuple(_stated(gpu, listed.get(gpu.uuid, []), host, stated_gib) for gpu in gpus)


def _stated(
    gpu: GpuReading, listed: Sequence[int | None], host: HostReading, stated: Mapping[str, float]
) -> GpuReading:
    gib = stated.get(gpu.uuid) or rank(gpu.name or "", stated)
    if gib is None or not has_no_figure(gpu):
        return gpu
    total, sizes = int(gib * GIB), [size for size in listed if size is not None]
    # One process of unknown memory makes the sum unknown.
    used = min(total, sum(sizes)) if len(sizes) == len(listed) else None
    return replace(
        gpu,
        memory_total_bytes=total,
        memory_used_bytes=used,
        memory_reserved_bytes=_taken_by_host(total, used, host),
    )


def _taken_by_host(total: int, used: int | None, host: HostReading) -> int | None:
    """The part of the GPU's memory that the host has taken; None = unknown."""
    if used is None or host.memory_available_bytes is None:
        return None
    return max(0, total - used - host.memory_available_bytes)
