from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.limits.quotas.policy import charging

DAY = 86_400.0
HALF_LIFE = 2 * DAY
parts = st.floats(0, 1)
seconds = st.floats(0, 1e6)


def test_slurms_classic_example_comes_out() -> None:
    share = [0.3, 0.05, 0.05, 0.25, 0.35]
    usage = [0.3875, 0.275, 0.15, 0.25, 0.35 * 5 / 12]
    factors = [charging.factor(u, s) for u, s in zip(usage, share, strict=True)]

    assert factors == pytest.approx([0.408479, 0.022097, 0.125, 0.5, 0.749154], abs=1e-6)


def test_five_irregular_steps_are_one_step() -> None:
    usage: dict[str, float] = {}
    for step in (1.0, 59.5, 240.0, 4.5, 60.0):
        usage = charging.advance(usage, {"alice": 2.0}, step, DAY)

    assert usage["alice"] == pytest.approx(0.005847885728893, abs=1e-15)
    assert charging.advance({}, {"alice": 2.0}, 365.0, DAY) == pytest.approx(usage, abs=1e-15)


@settings(max_examples=50)
@given(parts, parts, st.lists(seconds, min_size=1, max_size=6))
def test_steps_of_any_lengths_add_up(usage: float, rate: float, steps: list[float]) -> None:
    stepwise = {"alice": usage}
    for step in steps:
        stepwise = charging.advance(stepwise, {"alice": rate}, step, HALF_LIFE)
    at_once = charging.advance({"alice": usage}, {"alice": rate}, sum(steps), HALF_LIFE)

    assert stepwise["alice"] == pytest.approx(at_once["alice"], abs=1e-12)
    assert min(usage, rate) - 1e-12 <= at_once["alice"] <= max(usage, rate) + 1e-12


def test_who_uses_nothing_has_half_of_it_forgotten_after_a_half_life() -> None:
    assert charging.advance({"alice": 0.8}, {}, HALF_LIFE, HALF_LIFE) == {"alice": 0.4}


def test_a_start_costs_as_much_as_its_first_hour() -> None:
    hour = charging.advance({}, {"alice": 0.25}, 3600, HALF_LIFE)["alice"]

    assert charging.entry(0.25, 3600, HALF_LIFE) == pytest.approx(hour)


def test_who_has_no_share_divides_what_the_others_leave() -> None:
    weights = charging.weights({"alice": 30, "bob": None, "carol": None})

    assert weights == pytest.approx({"alice": 0.3, "bob": 0.35, "carol": 0.35})
    assert charging.weights({"alice": 30}) == {"alice": 1.0}


def test_shares_of_more_than_all_are_scaled_and_leave_a_little_for_the_rest() -> None:
    weights = charging.weights({"alice": 100, "bob": 100, "carol": None})

    assert weights["alice"] == weights["bob"]
    assert 0.02 < weights["carol"] < 0.03


def test_people_without_any_share_are_equal() -> None:
    assert charging.weights({"alice": 0, "bob": 0}) == {"alice": 0.5, "bob": 0.5}
    assert charging.weights({}) == {}


def test_who_had_less_than_their_part_is_to_get_more_now() -> None:
    targets = charging.targets({"alice": 0.5, "bob": 0.5}, {"alice": 0.5}, 1.0)

    assert targets == pytest.approx({"alice": 1 / 3, "bob": 2 / 3})
    assert charging.targets({"alice": 0.5, "bob": 0.5}, {"alice": 0.5}, 0.0) == {
        "alice": 0.5,
        "bob": 0.5,
    }


def test_who_had_everything_gets_nothing_while_the_other_wants_all() -> None:
    assert charging.targets({"alice": 0.5, "bob": 0.5}, {"bob": 1.0}, 1.0)["bob"] == 0.0


@settings(max_examples=50)
@given(
    st.dictionaries(st.sampled_from("abcdef"), st.one_of(st.none(), st.floats(0, 100)), min_size=1),
    st.dictionaries(st.sampled_from("abcdef"), parts),
    st.floats(0, 10),
)
def test_targets_are_parts_of_the_whole(
    agreed: dict[str, float | None], usage: dict[str, float], catch_up: float
) -> None:
    targets = charging.targets(charging.weights(agreed), usage, catch_up)

    assert targets.keys() == agreed.keys()
    assert sum(targets.values()) == pytest.approx(1)
    assert min(targets.values()) >= 0


def test_the_factor_is_one_half_at_the_share_and_one_without_use() -> None:
    assert charging.factor(0.2, 0.2) == 0.5
    assert charging.factor(0.0, 0.2) == 1.0
    assert charging.factor(0.0, 0.0) == 1.0
    assert charging.factor(0.1, 0.0) == 0.0


@given(st.dictionaries(st.text("abcdef", min_size=1), st.none() | st.floats(0, 100), max_size=8))
def test_entitlements_add_up_to_at_most_the_machine(shares: dict[str, float | None]) -> None:
    parts = charging.entitlements(shares)

    assert sum(parts.values()) <= 1 + 1e-9
    assert all(
        part <= (shares[name] or 0) / 100 + 1e-9
        for name, part in parts.items()
        if shares[name] is not None
    )
