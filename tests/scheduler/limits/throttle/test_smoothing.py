from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.limits.throttle.policy.throttle import MOST_GAP_S, Smoothed

looks = st.lists(
    st.tuples(st.none() | st.floats(0, 100), st.floats(0.1, 120)), min_size=1, max_size=20
)


def fed(values: list[float | None], seconds: float = 5.0, smooth_s: float = 60.0) -> Smoothed:
    mean = Smoothed()
    for value in values:
        mean = mean.fed(value, seconds, smooth_s)
    return mean


def test_the_first_value_counts_fully() -> None:
    assert fed([90.0]).mean() == pytest.approx(90)


def test_a_blip_moves_it_little_and_a_lasting_change_moves_it_all_the_way() -> None:
    assert fed([10.0] * 60 + [100.0]).mean() == pytest.approx(10 + 90 * 0.08, abs=0.5)
    assert fed([10.0] * 60 + [100.0] * 60).mean() == pytest.approx(100, abs=1)


def test_what_is_unknown_moves_nothing_but_lowers_the_coverage() -> None:
    assert fed([40.0] * 60 + [None] * 4).mean() == pytest.approx(40)
    assert fed([40.0] * 60 + [None] * 40).mean() is None
    assert fed([None]).mean() is None


def test_a_long_gap_is_known_only_as_far_as_one_look_reaches() -> None:
    gapped = fed([40.0] * 60).fed(40.0, 600.0, 60.0)
    assert gapped.mean(coverage_pct=50) is None
    assert fed([40.0] * 60).fed(80.0, MOST_GAP_S, 60.0).mean() is not None


@given(looks)
def test_it_stays_within_what_was_seen(readings: list[tuple[float | None, float]]) -> None:
    mean = Smoothed()
    for value, seconds in readings:
        mean = mean.fed(value, seconds, 60.0)
    known = [value for value, _ in readings if value is not None]
    mean_value = mean.mean(coverage_pct=0)
    assert 0 <= mean.known_weight <= mean.total + 1e-9 <= 1 + 2e-9
    assert (mean_value is None) == (not known)
    if mean_value is not None:
        assert min(known) - 1e-6 <= mean_value <= max(known) + 1e-6
