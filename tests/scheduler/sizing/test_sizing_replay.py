from __future__ import annotations

import pytest

from scheduler.sizing.policy import SizingPolicy
from tests.scheduler.sizing.trace import replay, trace


@pytest.mark.parametrize("seed", range(5))
def test_two_thousand_undeclared_jobs_hold_less_and_hardly_ever_run_out_of_memory(
    seed: int,
) -> None:
    found = replay(trace(2000, seed), SizingPolicy())

    assert found.held_s <= 0.7 * found.whole_s
    assert found.retries <= 0.01 * 2000
    assert found.sized > 1000


def test_without_sizes_from_history_each_job_holds_its_whole_gpu() -> None:
    found = replay(trace(200, 1), SizingPolicy(enabled=False))

    assert (found.sized, found.held_s) == (0, found.whole_s)
