from __future__ import annotations

from datetime import timedelta
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.limits.quotas.policy import charging
from scheduler.limits.quotas.policy.charging import GpuUseSpan
from tests.builders import NOW

HOUR = timedelta(hours=1)
HOUR_S = 3600.0


def hold(hours: float | None, part: float = 1.0) -> GpuUseSpan:
    """From NOW on, for so long."""
    return GpuUseSpan("alice", "1", part, NOW, None if hours is None else NOW + hours * HOUR)


def fees(hours: float | None, since_h: float, until_h: float) -> float:
    by_user = charging.fees([hold(hours)], NOW + since_h * HOUR, NOW + until_h * HOUR, HOUR_S)
    return by_user.get("alice", 0.0)


def test_a_start_costs_an_hour_and_nothing_more_before_that_is_over() -> None:
    assert fees(None, -1, 0) == 1
    assert fees(None, 0, 9) == 0
    assert charging.unpaid_seconds([hold(None)], NOW, NOW + HOUR, HOUR_S) == {}
    assert charging.unpaid_seconds([hold(None)], NOW, NOW + 3 * HOUR, HOUR_S) == {"alice": 7200}


def test_an_early_end_gives_back_what_is_left_of_the_hour() -> None:
    assert fees(0.25, 0, 1) == -0.75
    assert fees(0.25, -1, 1) == 0.25
    assert fees(2, 0, 9) == 0


def test_what_a_shared_job_costs_is_its_part() -> None:
    assert charging.fees([hold(None, 0.25)], NOW - HOUR, NOW, HOUR_S) == {"alice": 0.25}


def test_without_a_price_of_entry_only_the_time_counts() -> None:
    assert charging.fees([hold(1)], NOW - HOUR, NOW + 2 * HOUR, 0.0) == {"alice": 1.0}
    assert charging.unpaid_seconds([hold(1)], NOW, NOW + HOUR, 0.0) == {"alice": 3600}


@settings(max_examples=50)
@given(
    st.floats(0.01, 5),
    st.floats(0.1, 1),
    st.lists(st.floats(0, 6), max_size=5),
    st.sampled_from([600.0, 3600.0, 7200.0]),
)
def test_in_the_end_a_job_has_cost_what_it_kept(
    hours: float, part: float, looks: list[float], entry_s: float
) -> None:
    cuts = [NOW - HOUR, *(NOW + h * HOUR for h in sorted(looks)), NOW + 7 * HOUR]
    held = [hold(hours, part)]
    cost = 0.0
    for since, until in pairwise(cuts):
        cost += charging.unpaid_seconds(held, since, until, entry_s).get("alice", 0.0)
        cost += entry_s * charging.fees(held, since, until, entry_s).get("alice", 0.0)

    assert cost == pytest.approx(part * hours * HOUR_S, abs=0.01)
