"""Memory of a GPU that is used although no listed process holds it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from monitor.readings import GpuReading, Health, ProcessReading

# What the driver itself takes for contexts is less than this.
LEAST_BYTES = 1024**3
LASTING = timedelta(seconds=60)


def with_orphans(
    gpus: Sequence[GpuReading],
    processes: Iterable[ProcessReading],
    before: Mapping[str, GpuReading],
    now: datetime,
    is_fresh: bool,
) -> tuple[GpuReading, ...]:
    """The readings with what is orphaned and since when; between lists of processes as it was."""
    held: dict[str, list[int | None]] = defaultdict(list)
    for process in processes:
        held[process.gpu_uuid].append(process.memory_bytes)
    readings: list[GpuReading] = []
    for gpu in gpus:
        old = before.get(gpu.uuid)
        if not is_fresh and old is not None:
            size, since = old.orphaned_bytes, old.orphaned_since
        else:
            size = orphaned(gpu, held[gpu.uuid])
            since = old.orphaned_since if old else None
            since = (since or now) if size else None
        readings.append(replace(gpu, orphaned_bytes=size, orphaned_since=since))
    return tuple(readings)


def orphaned(gpu: GpuReading, held: Sequence[int | None]) -> int | None:
    """Used − Σ processes, where it is much; None where it can't be told.

    The used bytes leave out the reserved ones. A driver that does not tell these apart, or a
    process whose memory it hides, leaves the rest unknown.
    """
    if gpu.health is not Health.OK or gpu.memory_used_bytes is None:
        return None
    if gpu.memory_reserved_bytes is None or None in held:
        return None
    rest = gpu.memory_used_bytes - sum(size for size in held if size is not None)
    return rest if rest >= LEAST_BYTES else 0


def became_lasting(gpu: GpuReading, old_at: datetime, now: datetime) -> bool:
    """Whether memory has been orphaned for long enough now, and had not been at `old_at`."""
    since = gpu.orphaned_since
    return since is not None and now - since >= LASTING > old_at - since
