from __future__ import annotations

import pytest

from scheduler.queue.planner.sizing import SizingPolicy
from tests.scheduler.queue.sizing.trace import replay, trace


@pytest.mark.parametrize("seed", range(5))
def test_two_thousand_undeclared_jobs_hold_less_and_hardly_ever_run_out_of_memory(
    seed: int,
) -> None:
    replayed_queue = replay(trace(2000, seed), SizingPolicy())

    assert replayed_queue.held_s <= 0.7 * replayed_queue.whole_s
    assert replayed_queue.retries <= 0.01 * 2000
    assert replayed_queue.sized > 1000


def test_without_sizes_from_history_each_job_holds_its_whole_gpu() -> None:
    replayed_queue = replay(trace(200, 1), SizingPolicy(enabled=False))

    assert (replayed_queue.sized, replayed_queue.held_s) == (0, replayed_queue.whole_s)
