"""What a GPU is doing, in one word, and since when."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from monitor.gpu_states import GpuState
from monitor.readings import ClaimFact, GpuReading, Health, ProcessReading

# More than what a driver of the older kind counts as used on an empty GPU.
HELD_BYTES = 1024**3
BROKEN = frozenset({GpuState.LOST, GpuState.FAILING})


@dataclass(frozen=True, slots=True)
class StateChange:
    """A GPU that is now what `reading` says; `old` is how it was, None when it is new."""

    reading: GpuReading
    old: GpuReading | None

    @property
    def was(self) -> GpuState | None:
        return self.old.state if self.old else None


def state_of(
    gpu: GpuReading, processes: Sequence[ProcessReading], claims: Sequence[ClaimFact]
) -> GpuState:
    """`processes` and `claims` are those of this GPU."""
    if gpu.health is Health.LOST:
        return GpuState.LOST
    if gpu.health is Health.FAILING:
        return GpuState.FAILING
    if claims or any(process.job_ref for process in processes):
        return GpuState.SCRIPT_BUSY
    return GpuState.EXTERNAL if processes or _is_held(gpu) else GpuState.IDLE


def _is_held(gpu: GpuReading) -> bool:
    """Whether its memory is used though no process is listed (left behind, or not shown)."""
    return (gpu.memory_used_bytes or 0) >= HELD_BYTES


def with_states(
    gpus: Sequence[GpuReading],
    processes: Sequence[ProcessReading],
    claims: Sequence[ClaimFact],
    before: Mapping[str, GpuReading],
    now: datetime,
) -> tuple[tuple[GpuReading, ...], tuple[StateChange, ...]]:
    """The readings with state and since, and which of them changed."""
    on: dict[str, list[ProcessReading]] = defaultdict(list)
    for process in processes:
        on[process.gpu_uuid].append(process)
    claimed: dict[str, list[ClaimFact]] = defaultdict(list)
    for claim in claims:
        claimed[claim.gpu_uuid].append(claim)
    readings: list[GpuReading] = []
    changes: list[StateChange] = []
    for gpu in gpus:
        old = before.get(gpu.uuid)
        state = state_of(gpu, on[gpu.uuid], claimed[gpu.uuid])
        if old is not None and old.state is state:
            readings.append(replace(gpu, state=state, state_since=old.state_since or now))
        else:
            readings.append(replace(gpu, state=state, state_since=now))
            changes.append(StateChange(readings[-1], old))
    return tuple(readings), tuple(changes)
