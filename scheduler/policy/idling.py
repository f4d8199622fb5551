"""Which GPUs are idle although somebody waits for one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from monitor.gpu_states import GpuState
from monitor.readings import GpuReading


@dataclass(frozen=True, slots=True)
class IdlePolicy:
    """When an idle GPU beside waiting jobs is worth a word."""

    idle_minutes: float = field(
        default=10,
        metadata={
            "label": "Idle beside waiting jobs",
            "help": "Told when a GPU was idle for so long while a job waited as long.",
            "unit": "min",
            "least": 1,
            "most": 1440,
        },
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A job with GPUs that waits. `gpu_uuid`: the one that it must have, empty = any."""

    job_id: int
    since: datetime
    why: str = ""
    gpu_uuid: str = ""


@dataclass(frozen=True, slots=True)
class Idle:
    """An idle GPU and who could have used it, the longest waiting first."""

    gpu: GpuReading
    since: datetime
    waiting: tuple[Waiting, ...]


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
    found: Iterable[tuple[GpuReading, datetime]],
    waiting: Sequence[Waiting],
    policy: IdlePolicy,
    now: datetime,
) -> list[Idle]:
    """Those that somebody waited for all the while."""
    patience = timedelta(minutes=policy.idle_minutes)
    long = sorted((w for w in waiting if now - w.since >= patience), key=lambda w: w.since)
    return [
        Idle(gpu, since, those)
        for gpu, since in found
        if (those := tuple(w for w in long if w.gpu_uuid in ("", gpu.uuid)))
    ]
