"""Merge the driver's process lists of one GPU: a pid stands once and its memory counts once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from monitor.readings import GpuProcess

ORDER = "CGM"


@dataclass(frozen=True, slots=True)
class Listed:
    """One line of one list: "C" compute, "G" graphics, "M" MPS. `instance`: its MIG instance."""

    kind: str
    pid: int
    memory_bytes: int | None = None
    instance: int | None = None


def merge(gpu_uuid: str, lines: Iterable[Listed], total_bytes: int | None) -> list[GpuProcess]:
    """Every pid once, by pid. Lines without a real pid or with impossible memory are distrusted."""
    by_pid: dict[int, list[Listed]] = {}
    for line in lines:
        if line.pid > 0:
            by_pid.setdefault(line.pid, []).append(line)
    return [
        GpuProcess(
            gpu_uuid=gpu_uuid,
            pid=pid,
            memory_bytes=_memory(same, total_bytes),
            kinds="".join(kind for kind in ORDER if any(line.kind == kind for line in same)),
            instance=_instance(same),
        )
        for pid, same in sorted(by_pid.items())
    ]


def with_instances(lines: Iterable[Listed], inside: Iterable[Listed]) -> list[Listed]:
    """A GPU's own lines and those of its MIG instances, which say better who is where."""
    placed = list(inside)
    pids = {line.pid for line in placed}
    return [*placed, *(line for line in lines if line.pid not in pids)]


def _instance(lines: Iterable[Listed]) -> int | None:
    """The MIG instance that a process is in, if it is in one."""
    found = {line.instance for line in lines}
    return found.pop() if len(found) == 1 else None


def _memory(lines: Iterable[Listed], total_bytes: int | None) -> int | None:
    """Lists repeat the same memory; MIG instances each hold their own."""
    held: dict[int | None, int] = {}
    for line in lines:
        if line.memory_bytes is not None and _possible(line.memory_bytes, total_bytes):
            held[line.instance] = max(held.get(line.instance, 0), line.memory_bytes)
    return sum(held.values()) if held else None


def _possible(size: int, total_bytes: int | None) -> bool:
    return size >= 0 and (total_bytes is None or size <= total_bytes)
