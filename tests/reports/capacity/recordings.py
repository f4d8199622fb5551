"""Recorded jobs and GPUs to replay."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from reports.capacity.policy.demand import CapacityGpu, RecordedJob, ReplayFigures
from reports.capacity.policy.replay import Replay, ReplayInput
from scheduler.facts.jobs import Requirement
from tests.builders import GIB, NOW, gpu_uuid

HOUR = timedelta(hours=1)
ALONE = Requirement(exclusive=True)


def known_gpu(index: int = 0, **changes: Any) -> CapacityGpu:
    """An H100 with 80 GiB."""
    facts: dict[str, Any] = {
        "uuid": gpu_uuid(index),
        "host": "gpubox",
        "index": index,
        "model": "NVIDIA H100 80GB HBM3",
        "memory_bytes": 80 * GIB,
        "capability": (9, 0),
        "power": 2000.0,
    }
    return CapacityGpu(**(facts | changes))


def recorded(id: int = 1, at_h: float = 0, hours: float = 1, **changes: Any) -> RecordedJob:
    """Alice's exclusive job, submitted `at_h` hours after NOW, that started at once."""
    submitted_at = NOW + at_h * HOUR
    facts: dict[str, Any] = {
        "id": id,
        "owner": "alice",
        "priority": 3,
        "submitted_at": submitted_at,
        "requirement": ALONE,
        "run_time": hours * HOUR,
        "started_at": submitted_at,
    }
    return RecordedJob(**(facts | changes))


def played(jobs: list[RecordedJob], gpus: int | list[CapacityGpu] = 1, **given: Any) -> Replay:
    """A replay that has come to its end."""
    machine = [known_gpu(i) for i in range(gpus)] if isinstance(gpus, int) else gpus
    replay = Replay(ReplayInput(jobs=tuple(jobs), **given), machine)
    while replay.advance():
        pass
    return replay


def figures(
    jobs: list[RecordedJob], gpus: int | list[CapacityGpu] = 1, **given: Any
) -> ReplayFigures:
    return played(jobs, gpus, **given).figures()
