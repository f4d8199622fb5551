from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.limits.throttle.policy.throttle import (
    AdaptivePolicy,
    LoadTier,
    external_pct,
    multiplier,
    tier,
)
from tests.builders import GIB, gpu, process

POLICY = AdaptivePolicy()


def of(load: float | None, before: LoadTier | None = None) -> float:
    return multiplier(tier(load, before, POLICY), POLICY)


def test_the_tiers_of_others_load() -> None:
    assert [of(load) for load in (0, 29.9, 30, 70, 70.1, 100)] == [1.0, 1.0, 0.5, 0.5, 0.1, 0.1]


def test_a_tier_is_left_downwards_only_by_a_margin() -> None:
    assert tier(68, LoadTier.BUSY, POLICY) is LoadTier.BUSY
    assert tier(64, LoadTier.BUSY, POLICY) is LoadTier.MIDDLE
    assert tier(27, LoadTier.MIDDLE, POLICY) is LoadTier.MIDDLE
    assert tier(24, LoadTier.MIDDLE, POLICY) is LoadTier.FREE


def test_load_that_nobody_can_tell_counts_as_the_middle() -> None:
    assert of(None) == 0.5


def test_hog_and_mode_multiply_and_the_least_holds() -> None:
    assert multiplier(LoadTier.MIDDLE, POLICY, mode=0.5) == 0.25
    assert multiplier(LoadTier.FREE, POLICY, hog=True) == pytest.approx(0.1)
    assert multiplier(LoadTier.BUSY, POLICY, hog=True, mode=0.5) == 0.1


def test_a_paused_gpu_counts_as_nothing() -> None:
    assert multiplier(LoadTier.BUSY, AdaptivePolicy(pause=True)) == 0.0
    assert multiplier(LoadTier.MIDDLE, AdaptivePolicy(pause=True)) == 0.5


def test_our_own_jobs_are_no_load_of_others() -> None:
    ours = process(1, job_ref="7", sm_pct=90.0)
    assert external_pct(gpu(utilization_pct=90.0), [ours]) == 0
    assert external_pct(gpu(utilization_pct=95.0), [ours, process(2, sm_pct=20.0)]) == 20


def test_unknown_shares_are_what_our_own_leave_of_the_whole() -> None:
    unknown = process(2, sm_pct=None)
    assert external_pct(gpu(utilization_pct=95.0), [unknown]) == 95
    assert (
        external_pct(gpu(utilization_pct=95.0), [process(1, job_ref="7", sm_pct=60), unknown]) == 35
    )
    assert (
        external_pct(gpu(utilization_pct=95.0), [process(1, job_ref="7", sm_pct=None), unknown])
        is None
    )
    assert external_pct(gpu(utilization_pct=None), [unknown]) is None


def test_a_gpu_on_which_nobody_is_named_is_loaded_by_others_if_it_is_used() -> None:
    assert external_pct(gpu(utilization_pct=80.0), []) == 80
    assert external_pct(gpu(utilization_pct=None, memory_used_bytes=10 * GIB), []) is None
    assert external_pct(gpu(utilization_pct=None, memory_used_bytes=0), []) == 0


@settings(max_examples=50)
@given(
    st.none() | st.floats(0, 100),
    st.sampled_from([None, *LoadTier]),
    st.booleans(),
    st.floats(0, 1),
    st.booleans(),
)
def test_every_multiplier_is_between_the_least_and_one(
    load: float | None, before: LoadTier | None, hog: bool, mode: float, pause: bool
) -> None:
    policy = AdaptivePolicy(pause=pause)
    factor = multiplier(tier(load, before, policy), policy, hog=hog, mode=mode)
    assert factor == 0 if pause and tier(load, before, policy) is LoadTier.BUSY else factor >= 0.1
    assert factor <= 1


@given(st.lists(st.floats(0, 100), min_size=2, max_size=8).map(sorted))
def test_more_load_never_leaves_more(loads: list[float]) -> None:
    assert all(of(less) >= of(more) for less, more in pairwise(loads))
