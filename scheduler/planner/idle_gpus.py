"""Policy: GPUs that are idle although jobs wait for one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from monitor.facts.gpu_states import GpuState
from monitor.facts.readings import GpuReading
from monitor.facts.thresholds import threshold


@dataclass(frozen=True, slots=True)
class IdlePolicy:
    """Reports of GPUs that are idle while jobs wait."""

    # fmt: off
    idle_minutes: float = threshold(10, "Report an idle GPU after", unit="min", ge=1, le=1440,
        help="Both the GPU's idle time and a job's waiting time must exceed this value.")
    # fmt: on


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingJob:
    """A job with GPUs that waits. `gpu_uuid`: the one that it must have, empty = any."""

    job_id: int
    since: datetime
    why: str = ""
    gpu_uuid: str = ""


@dataclass(frozen=True, slots=True)
class IdleGpu:
    """An idle GPU and the jobs that could have used it, the longest waiting first."""

    gpu: GpuReading
    since: datetime
    waiting: tuple[WaitingJob, ...]


def long_idle(
    gpus: Iterable[GpuReading], policy: IdlePolicy, now: datetime
) -> list[tuple[GpuReading, datetime]]:
    """The GPUs that were idle for long enough, and since when."""
    patience = timedelta(minutes=policy.idle_minutes)
    return [
        (gpu, gpu.state_since)
        for gpu in gpus
        if gpu.state is GpuState.IDLE and gpu.state_since and now - gpu.state_since >= patience
    ]


def beside(
    idle: Iterable[tuple[GpuReading, datetime]],
    waiting: Sequence[WaitingJob],
    policy: IdlePolicy,
    now: datetime,
) -> list[IdleGpu]:
    """The idle GPUs that jobs waited for all the time."""
    patience = timedelta(minutes=policy.idle_minutes)
    long = sorted((w for w in waiting if now - w.since >= patience), key=lambda w: w.since)
    return [
        IdleGpu(gpu, since, those)
        for gpu, since in idle
        if (those := tuple(w for w in long if w.gpu_uuid in ("", gpu.uuid)))
    ]
