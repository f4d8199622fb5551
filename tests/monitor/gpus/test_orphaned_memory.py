from __future__ import annotations

from datetime import timedelta

import pytest

from monitor.facts.readings import GpuReading, Health
from monitor.gpus.policy import changes as gpu_changes
from monitor.gpus.policy.states import orphaned, with_orphans
from tests.builders import GIB, NOW, gpu, process, snapshot


def held(used: int, **changes: object) -> GpuReading:
    return gpu(0, memory_used_bytes=used * GIB, **changes)


@pytest.mark.parametrize(
    ("reading", "sizes", "expected"),
    [
        (held(30), [10 * GIB, 8 * GIB], 12 * GIB),
        (held(30), [], 30 * GIB),
        (held(30), [30 * GIB - 500 * 1024**2], 0),
        (held(30), [31 * GIB], 0),
        (held(30), [10 * GIB, None], None),
        (held(30, memory_reserved_bytes=None), [], None),
        (gpu(0, memory_used_bytes=None), [], None),
        (held(30, health=Health.FAILING), [], None),
    ],
)
def test_orphaned_is_what_is_used_less_what_is_held(
    reading: GpuReading, sizes: list[int | None], expected: int | None
) -> None:
    assert orphaned(reading, sizes) == expected


def test_it_says_since_when_and_keeps_that_between_looks() -> None:
    first = with_orphans([held(30)], [process(memory_bytes=10 * GIB)], {}, NOW, True)
    assert (first[0].orphaned_bytes, first[0].orphaned_since) == (20 * GIB, NOW)
    before = {first[0].uuid: first[0]}
    later = NOW + timedelta(seconds=9)
    assert with_orphans([held(12)], [], before, later, False)[0].orphaned_bytes == 20 * GIB
    again = with_orphans([held(30)], [process(memory_bytes=5 * GIB)], before, later, True)
    assert (again[0].orphaned_bytes, again[0].orphaned_since) == (25 * GIB, NOW)
    over = with_orphans([held(30)], [process(memory_bytes=30 * GIB)], before, later, True)
    assert (over[0].orphaned_bytes, over[0].orphaned_since) == (0, None)


def test_orphaned_memory_is_reported_once_and_only_when_it_lasts() -> None:
    reading = held(30, orphaned_bytes=20 * GIB, orphaned_since=NOW)
    told = []
    for second in range(200):
        old, new = (
            snapshot([reading], at=NOW + timedelta(seconds=t)) for t in (second, second + 1)
        )
        told += [(second + 1, note) for note in gpu_changes.of_sweep(old, new, ())]
    ((at, note),) = told
    assert (at, note.kind, note.severity) == (60, "ORPHANED_MEMORY", "warning")
    assert "20 GiB of GPU 0" in note.text
