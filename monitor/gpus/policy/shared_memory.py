"""Memory of GPUs of which the driver gives no figure, because they share the memory of the host.

Their total is stated by an operator. Their used memory is that of the listed processes, and what
the host uses besides counts as reserved, since it is memory that no job on the GPU can get.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from monitor.facts.readings import GpuReading, HostReading, ProcessReading
from monitor.gpus.policy.capability import rank

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
