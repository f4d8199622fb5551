from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from msgspec.structs import replace

from monitor.facts.gpus import GpuState
from monitor.facts.readings import ProcessReading, Snapshot
from monitor.gpus.rows import snapshot as snapshots
from monitor.pages import frames
from tests.builders import GIB, NOW, gpu, process, snapshot


@pytest.fixture
def only_monitor(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dashboard without the regions of other apps."""
    kept = {"incidents": frames._registered["incidents"]}
    monkeypatch.setattr(frames, "_registered", kept)


def crowd(gpus: int, processes: int) -> list[ProcessReading]:
    people = ("alice", "bob", "charlie", "dana")
    return [
        process(4_200_000 + i, on=i % gpus, user=people[i % 4], memory_bytes=(i % 7 + 1) * GIB)
        for i in range(processes)
    ]


@pytest.fixture
def seen(db: None) -> Callable[..., Snapshot]:
    """Record readings of the sampler: seen(8, crowd(8, 20)) is a snapshot of busy GPUs."""

    def record(
        gpus: int = 1, processes: Sequence[ProcessReading] = (), **changes: object
    ) -> Snapshot:
        on = {p.gpu_uuid for p in processes}
        readings = [gpu(i) for i in range(gpus)]
        states = {True: GpuState.EXTERNAL, False: GpuState.IDLE}
        shown = [replace(g, state=states[g.uuid in on], state_since=NOW) for g in readings]
        found = replace(snapshot(shown, processes), **changes)  # type: ignore[arg-type]
        snapshots.record(found)
        return found

    return record
