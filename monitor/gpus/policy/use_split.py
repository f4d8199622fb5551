"""Division of GPU use between jobs of gpucoord and all other processes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from monitor.facts.readings import GpuReading, Health, ProcessReading, Snapshot


@dataclass(frozen=True, slots=True)
class UseSplit:
    """Percent of a GPU's time, or of all GPUs of a host. None = unknown, 0 = known idle."""

    jobs_pct: float | None
    others_pct: float | None


UNKNOWN = UseSplit(None, None)
# Below it, a GPU without processes is idle: its reading is a mean of the last second.
BUSY_PCT = 5.0


def by_gpu(snapshot: Snapshot) -> dict[str, UseSplit]:
    """The split of each GPU, by UUID.

    Unknown if the driver does not report the GPU's use, or lists no process on a busy GPU.
    """
    on: dict[str, list[ProcessReading]] = {gpu.uuid: [] for gpu in snapshot.gpus}
    for process in snapshot.processes:
        on.setdefault(process.gpu_uuid, []).append(process)
    return {
        gpu.uuid: _split(on[gpu.uuid]) if _is_measured(gpu, on[gpu.uuid]) else UNKNOWN
        for gpu in snapshot.gpus
    }


def of_host(snapshot: Snapshot) -> UseSplit:
    """The mean over the GPUs of the host. Unknown as soon as one GPU's is."""
    splits = by_gpu(snapshot).values()
    return UseSplit(_mean(s.jobs_pct for s in splits), _mean(s.others_pct for s in splits))


def _is_measured(gpu: GpuReading, processes: Sequence[ProcessReading]) -> bool:
    if gpu.health is not Health.OK or gpu.utilization_pct is None:
        return False
    return bool(processes) or gpu.utilization_pct < BUSY_PCT


def _split(processes: Iterable[ProcessReading]) -> UseSplit:
    # A process with several contexts on one GPU is one process: its share counts once.
    by_pid = {process.pid: process for process in processes}
    return UseSplit(
        _sum(p.sm_pct for p in by_pid.values() if p.job_ref is not None),
        _sum(p.sm_pct for p in by_pid.values() if p.job_ref is None),
    )


def _sum(shares: Iterable[float | None]) -> float | None:
    total = 0.0
    for share in shares:
        if share is None:
            return None
        total += share
    return min(total, 100.0)


def _mean(shares: Iterable[float | None]) -> float | None:
    values = list(shares)
    total = 0.0
    for share in values:
        if share is None:
            return None
        total += share
    return total / len(values) if values else None
