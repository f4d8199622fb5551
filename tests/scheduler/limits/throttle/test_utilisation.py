from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from scheduler.limits.throttle.policy.pressure import (
    INTEGRAL_GAIN,
    Level,
    UtilisationInput,
    UtilisationPolicy,
    looked,
    starts,
)
from tests.scheduler.plant import TICK_S, Plant, Trace, turns, within

POLICY = UtilisationPolicy()
HOUR = 3600.0
FOR_EVER = 1e9
DEAD_TIMES = pytest.mark.parametrize("dead_s", [10.0, 30.0, 60.0])


def utilisation(use: float | None = 40.0, **changes: Any) -> UtilisationInput:
    figures: dict[str, Any] = {"others": 0.0, "running": 4, "quiet": 0, "gpus": 4}
    return UtilisationInput(use=use, **(figures | changes))


def after(
    level: Level, figures: UtilisationInput, looks: int, policy: UtilisationPolicy = POLICY
) -> Level:
    """So many looks at the same, long after the last step."""
    for number in range(looks):
        level = looked(level, figures, policy, 10_000 + number * TICK_S, TICK_S)
    return level


def settled(trace: Trace) -> Trace:
    """Without the first half hour."""
    return [look for look in trace if look[0] >= HOUR / 2]


@DEAD_TIMES
@pytest.mark.parametrize(("gpus", "each"), [(1, 10), (1, 25), (2, 25), (2, 50), (8, 10), (8, 35)])
def test_lasting_jobs_bring_the_use_into_the_band_and_then_nothing_moves(
    dead_s: float, gpus: int, each: float
) -> None:
    plant = Plant(gpus=gpus, each=each, dead_s=dead_s, lasts_s=FOR_EVER)
    trace = settled(plant.run(1.5 * HOUR))
    assert within(trace, 60, 80) == 1.0
    assert turns(trace, each / gpus / 2) == 0


@DEAD_TIMES
@pytest.mark.parametrize(("gpus", "each"), [(1, 25), (2, 35), (8, 25), (8, 50)])
def test_while_jobs_come_and_go_the_use_stays_near_the_band(
    dead_s: float, gpus: int, each: float
) -> None:
    trace = settled(Plant(gpus=gpus, each=each, dead_s=dead_s, lasts_s=1800.0).run(3 * HOUR))
    assert within(trace, 60 - each / gpus, 80 + each / gpus) >= 0.9


@DEAD_TIMES
def test_jobs_too_large_for_the_band_make_no_limit_cycle(dead_s: float) -> None:
    trace = settled(Plant(gpus=1, each=50.0, dead_s=dead_s, lasts_s=FOR_EVER).run(2 * HOUR))
    assert turns(trace, 10) == 0
    assert len({running for _, _, running, _ in trace}) == 1


@DEAD_TIMES
def test_others_load_pushes_our_jobs_back_and_they_come_again(dead_s: float) -> None:
    others = lambda t: 60.0 if HOUR <= t < 2 * HOUR else 0.0  # noqa: E731
    plant = Plant(gpus=4, each=20.0, dead_s=dead_s, lasts_s=600.0, others=others)
    trace = plant.run(3.5 * HOUR)
    amid = [look for look in trace if 1.5 * HOUR <= look[0] < 2 * HOUR]
    after_it = [look for look in trace if look[0] >= 3 * HOUR]
    assert max(running for _, _, running, _ in amid) <= 5
    assert min(running for _, _, running, _ in after_it) >= 10


def test_idle_gpus_start_jobs_at_once() -> None:
    plant = Plant(gpus=8, each=90.0, lasts_s=FOR_EVER)
    [(_, _, _, started)] = plant.run(TICK_S)
    assert started == 8


def test_an_idle_machine_is_never_held_back_whatever_is_remembered() -> None:
    full = Level(level=0, integral=-500.0, use=95.0, settles_t=1e12)
    assert starts(full, utilisation(0.0, running=0, quiet=4), POLICY) is None
    assert starts(full, utilisation(90.0, running=3, quiet=1), POLICY) == 1


def test_a_use_that_nobody_can_tell_holds_nobody_back() -> None:
    assert starts(Level(level=0), utilisation(None), POLICY) is None
    assert starts(Level(level=0), utilisation(95.0), UtilisationPolicy(enabled=False)) is None


def test_within_the_band_what_ends_is_replaced_and_no_more() -> None:
    level = after(Level(level=4, running=4), utilisation(70.0), 100)
    assert starts(level, utilisation(70.0), POLICY) == 0
    assert starts(level, utilisation(70.0, running=3), POLICY) == 1


def test_below_the_band_more_start_and_above_it_fewer() -> None:
    assert after(Level(level=4), utilisation(40.0), 1).level == 7
    assert after(Level(level=4), utilisation(95.0), 3).level == 3


def test_after_a_step_it_waits_until_its_effect_can_be_seen() -> None:
    stepped = after(Level(level=4), utilisation(40.0), 1)
    once_more = looked(stepped, utilisation(40.0), POLICY, stepped.settles_t - 1, TICK_S)
    assert (once_more.level, once_more.integral) == (stepped.level, 0.0)


def test_it_counts_on_the_load_of_jobs_that_have_just_started() -> None:
    assert after(Level(level=4), utilisation(40.0, running=4, young=2), 50).level == 4


def test_jobs_that_take_nothing_may_be_many() -> None:
    assert after(Level(level=4), utilisation(5.0, others=5.0), 1).level == 8


def test_a_band_must_have_a_width() -> None:
    assert UtilisationPolicy().conflicts() == {}
    assert set(UtilisationPolicy(low_pct=80.0).conflicts()) == {"low_pct"}


@pytest.mark.parametrize("bound", ["queue", "memory", "owner"])
def test_nothing_moves_while_something_else_keeps_jobs_from_starting(bound: str) -> None:
    before = Level(level=4, integral=12.0, use=40.0, running=4)
    assert after(before, utilisation(40.0, bound=bound), 500) == before


def test_the_integral_is_clamped_and_forgets_the_other_side() -> None:
    # One job has all the load, so any step would end farther from the band.
    below = after(Level(level=1), utilisation(59.0, running=1), 1)
    assert below.integral > 0
    above = after(replace(below, settles_t=0.0), utilisation(81.0, running=1), 1)
    assert above.integral < 0


@settings(max_examples=50)
@given(st.lists(st.tuples(st.none() | st.floats(0, 100), st.integers(0, 9)), max_size=40))
def test_whatever_it_sees_a_level_is_near_what_runs_and_starts_are_no_debt(
    figures: list[tuple[float | None, int]],
) -> None:
    level = Level()
    for number, (use, running) in enumerate(figures):
        look = utilisation(use, running=running, quiet=0)
        level = looked(level, look, POLICY, number * 200.0, TICK_S)
        allowed = starts(level, look, POLICY)
        assert level.level is not None
        assert level.level >= 0
        assert abs(level.integral) <= 4 / INTEGRAL_GAIN
        assert allowed is None or allowed >= 0
