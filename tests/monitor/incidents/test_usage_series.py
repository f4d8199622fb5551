from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.incidents.policy.usage_series import (
    COARSE_S,
    FINE,
    HORIZON_S,
    ProcessPresence,
    Series,
    UsageBuffers,
    UsageMinute,
    UsagePoint,
    merged,
)
from monitor.incidents.policy.usage_series import UsageUntil as Total

STEPS = st.lists(
    st.tuples(st.integers(1, 20), st.floats(0, 1), st.booleans()), min_size=1, max_size=400
)
KEY = ("GPU-0", 7, 1)
GROUP = "GPU-0|alice|"


def used(seconds: float, share: float, known: bool = True) -> UsagePoint:
    seen = seconds if known else 0.0
    return UsagePoint(seconds, share * seen, seconds, seen, 8.0 * seen, seen)


def series(steps: list[tuple[int, float, bool]]) -> Series:
    made, t = Series(), 1e6
    for seconds, share, known in steps:
        t += seconds
        made.add(t, seconds, used(seconds, share, known))
    return made


@settings(max_examples=50, deadline=None)
@given(STEPS)
def test_the_total_is_the_sum_of_the_points(steps: list[tuple[int, float, bool]]) -> None:
    whole = series(steps).over(0)
    assert whole.span_s == sum(s for s, _, _ in steps)
    assert whole.sm_s == pytest.approx(sum(s * share for s, share, known in steps if known))
    assert whole.known_s == sum(s for s, _, known in steps if known)


@settings(max_examples=50, deadline=None)
@given(STEPS, st.floats(0, 1), st.floats(0, 1))
def test_two_parts_of_a_window_make_the_window(
    steps: list[tuple[int, float, bool]], one: float, other: float
) -> None:
    made = series(steps)
    a, b = sorted(made.begin + part * made.span_s for part in (one, other))
    parts = made.over(made.begin, a), made.over(a, b), made.over(b)
    assert sum(p.sm_s for p in parts) == pytest.approx(made.over(0).sm_s, abs=1e-6)
    assert sum(p.known_s for p in parts) == pytest.approx(made.over(0).known_s, abs=1e-6)
    assert all(0 <= p.coverage <= 1 for p in parts)


def test_hours_of_it_take_little_room_and_old_ones_go() -> None:
    made = series([(5, 0.5, True)] * 5000)
    assert len(made.points) <= FINE + HORIZON_S / COARSE_S * 2 + 30
    assert made.span_s < HORIZON_S * 1.2
    assert made.last(600).pct == pytest.approx(50)


def test_a_window_longer_than_the_series_has_the_length_of_the_series() -> None:
    assert series([(10, 1.0, True)] * 3).last(600).span_s == 30


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=6))
def test_several_together_never_take_more_than_the_gpu(parts: list[tuple[float, bool]]) -> None:
    pieces = [Total(100, used(10, share, known)) for share, known in parts]
    together = merged(90, 100, pieces)
    assert together.sm_s <= together.held_s == 10
    assert together.known_s <= 10
    assert together.known_s == (10 if all(known for _, known in parts) else 0)


def test_the_account_in_rows_counts_where_there_is_one() -> None:
    windows = UsageBuffers()
    windows.recall(
        [UsageMinute(KEY, GROUP, 100.0, used(60, 0.9))], {KEY: Total(100.0, used(60, 0.9))}
    )
    seen = ProcessPresence(KEY, GROUP, sm_pct=0.0, memory_bytes=0)
    windows.feed(105.0, [seen], {KEY: Total(105.0, used(65, 0.9))}, {"GPU-0"})
    assert windows.groups[GROUP].over(0).pct == pytest.approx(90)
    assert windows.groups[GROUP].span_s == 65


def test_a_process_that_comes_back_brings_no_old_sums_along() -> None:
    windows = UsageBuffers(looked_t=100.0)
    seen = ProcessPresence(KEY, GROUP, sm_pct=None, memory_bytes=0)
    windows.feed(105.0, [seen], {KEY: Total(104.0, used(9000, 0.9))}, {"GPU-0"})
    windows.feed(110.0, [seen], {KEY: Total(109.0, used(9005, 0.9))}, {"GPU-0"})
    assert windows.processes[KEY].over(0).held_s == 5


def test_time_without_readings_is_unknown() -> None:
    windows = UsageBuffers()
    seen = ProcessPresence(KEY, GROUP, sm_pct=99.0, memory_bytes=0, created_t=0.0)
    for t in (100.0, 105.0, 305.0, 310.0):
        windows.feed(t, [seen], {}, {"GPU-0"})
    assert windows.groups[GROUP].over(0).known_s == 10
    assert windows.groups[GROUP].over(0).coverage < 0.1


def fork_pool(life: float, parallel: int, pct: float) -> UsagePoint:
    """The windows' measurements of a pool: rows each 5 s, two seconds before each look."""
    windows, t, every = UsageBuffers(), 0.0, life / parallel
    starts = [1.3 + k * every for k in range(int(600 / every) + 1)]
    while t < 597:
        t += 5
        written, totals, present, gone = t - 2, {}, [], []
        for n, start in enumerate(s for s in starts if s <= t):
            end = start + life
            seen = ProcessPresence(("GPU-0", n, n), GROUP, pct, 10**9, start)
            held = min(written, end) - start
            if held > 0 and end > written - 60:
                all_used = UsagePoint(held, held * pct / 100, held, held, held * 1e9, held)
                totals[seen.key] = Total(min(written, end), all_used)
            if t < end:
                present.append(seen)
            elif end <= written:
                gone.append(seen)
        windows.feed(t, present, totals, {"GPU-0"}, gone)
    return windows.groups[GROUP].last(120)


@pytest.mark.parametrize(
    ("life", "parallel"), [(6000, 1), (60, 1), (20, 1), (20, 4), (10, 4), (4, 1), (4, 4), (3, 1)]
)
def test_a_pool_of_short_processes_is_measured_like_one_long_process(
    life: float, parallel: int
) -> None:
    used = fork_pool(life, parallel, 96 / parallel)
    assert used.pct == pytest.approx(96, abs=2)
    assert used.coverage > 0.95


def test_samples_that_arrive_late_never_show_more_than_the_whole_gpu() -> None:
    assert UsagePoint(5, 5.2, 5, 5, 0, 5).pct == 100
