"""Policy: GPUs that are idle by use, and idle GPUs that jobs wait for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from msgspec import Struct

from monitor.facts.gpus import GpuState
from monitor.facts.readings import GpuReading, Health
from monitor.facts.thresholds import threshold

# An idle GPU that jobs wait for is reported if it was idle, and they waited, for this time.
WANTED_FOR = timedelta(minutes=10)


@dataclass(frozen=True, slots=True)
class IdlePolicy:
    """Reports of idle GPUs and CPUs, and of GPUs that are idle while jobs wait."""

    # fmt: off
    idle_seconds: float = threshold(300, "Idle after", unit="s", ge=10, le=86_400,
        help="A GPU or the CPUs of a host count as idle after this time below 5 % utilisation.")
    # fmt: on


class WaitingJob(Struct, frozen=True, kw_only=True):
    """A job with GPUs that waits. `gpu_uuid`: the one that it must have, empty = any."""

    job_id: int
    since: datetime
    why: str = ""
    gpu_uuid: str = ""


class IdleGpu(Struct, frozen=True):
    """An idle GPU and the jobs that could have used it, the longest waiting first."""

    gpu: GpuReading
    since: datetime
    waiting: tuple[WaitingJob, ...]


def idle_by_use(
    gpus: Iterable[GpuReading], policy: IdlePolicy, now: datetime
) -> list[tuple[GpuReading, datetime]]:
    """GPUs that have been below 5 % for long enough, and since when; memory may be held there."""
    patience = timedelta(seconds=policy.idle_seconds)
    return [
        (gpu, gpu.idle_since)
        for gpu in gpus
        if gpu.health is Health.OK and gpu.idle_since and now - gpu.idle_since >= patience
    ]


def long_idle(gpus: Iterable[GpuReading], now: datetime) -> list[tuple[GpuReading, datetime]]:
    """The GPUs that were idle for long enough, and since when."""
    return [
        (gpu, gpu.state_since)
        for gpu in gpus
        if gpu.state is GpuState.IDLE and gpu.state_since and now - gpu.state_since >= WANTED_FOR
    ]


def beside(
    idle: Iterable[tuple[GpuReading, datetime]],
    waiting: Sequence[WaitingJob],
    now: datetime,
) -> list[IdleGpu]:
    """The idle GPUs that jobs waited for all the time."""
    long = sorted((w for w in waiting if now - w.since >= WANTED_FOR), key=lambda w: w.since)
    return [
        IdleGpu(gpu, since, those)
        for gpu, since in idle
        if (those := tuple(w for w in long if w.gpu_uuid in ("", gpu.uuid)))
    ]
