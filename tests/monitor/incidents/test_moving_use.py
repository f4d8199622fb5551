from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.facts.incidents import SUSTAINED
from monitor.facts.readings import ProcessReading
from monitor.incidents.policy.usage_series import GpuMinute, Series, Turns, UsagePoint, several_gpus
from tests.builders import process
from tests.monitor.hog_traces import Processes, Trace, policies


def hopper(stay_min: float, *, leaves: bool) -> Processes:
    """98 % of one GPU of four, on another one after `stay_min`; or idle on the others."""

    def seen(minute: float) -> list[ProcessReading]:
        now = int(minute / stay_min) % 4
        return [
            process(pid=100 + on, on=on, sm_pct=98.0 if on == now else 0.0)
            for on in range(4)
            if on == now or not leaves
        ]

    return seen


@pytest.mark.parametrize("leaves", [True, False])
@pytest.mark.parametrize("minutes", [2.0, 10.0])
def test_use_that_moves_between_gpus_each_minute_is_sustained_use(
    leaves: bool, minutes: float
) -> None:
    trace = Trace(policies(sustained_minutes=minutes), gpus=4, every_s=5)
    trace.play(minutes + 5, hopper(1.0, leaves=leaves))
    assert trace.opened == [SUSTAINED]
    assert trace.known[0].severity == "info"
    assert "in turn for" in trace.texts[SUSTAINED]


def test_it_ends_when_the_use_does() -> None:
    trace = Trace(policies(sustained_minutes=2.0), gpus=4, every_s=5)
    trace.play(6, hopper(1.0, leaves=True)).play(12, lambda minute: [])
    assert (trace.opened, trace.closed) == ([SUSTAINED], [SUSTAINED])


def test_short_stays_are_found_in_a_long_window() -> None:
    trace = Trace(policies(), gpus=4, every_s=5).play(12, hopper(0.5, leaves=False))
    assert trace.opened == [SUSTAINED]


@pytest.mark.parametrize("gpus", [2, 4, 14])
def test_changing_use_of_several_gpus_at_the_same_time_is_not_told_as_moving(gpus: int) -> None:
    rng = Random(gpus)

    def changing(minute: float) -> list[ProcessReading]:
        return [process(pid=100 + on, on=on, sm_pct=rng.uniform(50, 98)) for on in range(gpus)]

    assert Trace(gpus=gpus, every_s=5).play(13, changing).told == []


def test_heavy_and_light_use_at_the_same_time_do_not_add_up() -> None:
    def both(minute: float) -> list[ProcessReading]:
        return [process(pid=100, on=0, sm_pct=70.0), process(pid=101, on=1, sm_pct=25.0)]

    assert Trace(gpus=2).play(30, both).told == []


@given(st.lists(st.lists(st.floats(0, 5), min_size=4, max_size=4), min_size=1, max_size=20))
def test_without_some_gpus_the_rest_is_at_least_as_busy_as_the_rank_says(
    steps: list[list[float]],
) -> None:
    turns, series = Turns(), {str(gpu): [Series()] for gpu in range(4)}
    for number, used in enumerate(steps, 1):
        for gpu, sm_s in enumerate(used):
            series[str(gpu)][0].add(5.0 * number, 5, UsagePoint(5, sm_s, 5, 5, 0, 0))
        turns.note(5.0 * number, 5.0, {"alice": series})
    for left_out in range(4):
        rest = sum(max(used[left_out:]) for used in steps)
        assert turns.ranks["alice"][left_out].over(0.0).sm_s <= rest + 1e-6


def minute_of(user: str | None, gpu_uuid: str, sm_s: float = 30.0, t: int = 0) -> GpuMinute:
    return GpuMinute(t, gpu_uuid, user, t + 60.0, sm_s, 60.0, 60.0)


def test_a_minute_of_two_gpus_is_divided_by_their_utilisation_only_without_other_users() -> None:
    mine = [minute_of("alice", gpu) for gpu in ("A", "B")]
    steps = {"A": dict.fromkeys(range(6), 98.0), "B": dict.fromkeys(range(6, 12), 98.0)}
    assert recalled(mine, steps) == pytest.approx(60)
    assert recalled(mine, {}) == 0
    assert recalled([*mine, minute_of("bob", "A")], steps) == pytest.approx(45)


def recalled(minutes: list[GpuMinute], steps: dict[str, dict[int, float]]) -> float:
    """Seconds in which alice kept one GPU busy."""
    turns = Turns()
    turns.recall(minutes, steps)
    return turns.ranks["alice"][0].over(0.0).sm_s


def test_only_minutes_that_may_be_use_of_one_gpu_after_another_are_divided() -> None:
    minutes = [
        minute_of("alice", "A"),
        minute_of("alice", "B", t=60),
        minute_of("bob", "C"),
        minute_of("bob", "D"),
        minute_of("bob", "E", sm_s=0.0),
        minute_of("bob", "F", sm_s=55.0),
        minute_of(None, "G"),
        minute_of("carol", "H", sm_s=55.0),
        minute_of("carol", "I", sm_s=10.0),
    ]
    assert several_gpus(minutes, 80.0) == {"C", "D"}


@pytest.mark.parametrize(("gpus", "pct"), [(4, 30.0), (2, 45.0), (4, 60.0)])
def test_steady_light_use_of_several_gpus_is_not_sustained_use(gpus: int, pct: float) -> None:
    def steady(minute: float) -> list[ProcessReading]:
        return [process(pid=100 + on, on=on, sm_pct=pct) for on in range(gpus)]

    assert Trace(gpus=4).play(30, steady).told == []


def test_use_of_all_gpus_is_reported_after_the_rule_time_and_not_before() -> None:
    def all_of_them(minute: float) -> list[ProcessReading]:
        return [process(pid=100 + on, on=on, sm_pct=95.0) for on in range(4)]

    trace = Trace(gpus=4).play(9.5, all_of_them)
    assert trace.told == []
    assert trace.play(2, all_of_them).opened == [SUSTAINED] * 4
