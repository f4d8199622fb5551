"""The weighted choice of the next template: pure, and the same for the same seed."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import Any

import pytest

from scheduler.facts.scripts import Signal, SignalName, TemplateFact
from scheduler.submission.idle_work.policy import (
    candidates,
    may_run,
    pick_weighted_config,
)
from tests.builders import NOW

N = SignalName
GPU = "GPU-0"


def template(
    name: str, hours_ago: float = 0, weight: float = 1.0, **signals: float
) -> TemplateFact:
    at = NOW - timedelta(hours=hours_ago)
    posted = {N(key): Signal(value, at) for key, value in signals.items()}
    return TemplateFact(id=1, name=name, weight=weight, signals=posted)


def factor(one: TemplateFact, name: SignalName, *others: TemplateFact) -> float:
    (found,) = [c for c in candidates([one, *others], NOW) if c.name == one.name]
    return found.factors[name]


def test_a_template_without_signals_is_neutral() -> None:
    (one,) = candidates([template("a", weight=3)], NOW)

    assert set(one.factors.values()) == {1.0}
    assert (one.weight, one.share) == (3.0, 1.0)


def test_the_curriculum_weight_is_a_factor() -> None:
    assert factor(template("a", curriculum_weight=3), N.CURRICULUM_WEIGHT) == 3


def test_the_fastest_gets_the_highest_factor() -> None:
    fast, slow = template("a", improvement_velocity=8), template("b", improvement_velocity=2)

    assert factor(fast, N.IMPROVEMENT_VELOCITY, slow) == 2
    assert factor(slow, N.IMPROVEMENT_VELOCITY, fast) == 1.25
    assert factor(template("c", improvement_velocity=0), N.IMPROVEMENT_VELOCITY) == 1


def test_stale_data_gets_a_boost_that_grows_until_it_is_stale() -> None:
    assert factor(template("a", data_age_hours=0), N.DATA_AGE_HOURS) == 1
    assert factor(template("a", data_age_hours=84), N.DATA_AGE_HOURS) == 1.5
    assert factor(template("a", data_age_hours=1000), N.DATA_AGE_HOURS) == 2
    assert factor(template("a", hours_ago=84, data_age_hours=0), N.DATA_AGE_HOURS) == 1.5


def test_high_quality_gets_more() -> None:
    assert factor(template("a", quality=1), N.QUALITY) == 1.5
    assert factor(template("a", quality=0), N.QUALITY) == 0.5


@pytest.mark.parametrize(
    ("name", "value", "fresh"), [("curriculum_weight", 5, 5), ("quality", 0, 0.5)]
)
def test_signals_decay_to_neutral(name: str, value: float, fresh: float) -> None:
    assert factor(template("a", **{name: value}), N(name)) == fresh
    half = factor(template("a", hours_ago=24, **{name: value}), N(name))
    assert half == pytest.approx(1 + (fresh - 1) / 2)
    assert factor(template("a", hours_ago=2400, **{name: value}), N(name)) == pytest.approx(1)


def test_the_same_seed_gives_the_same_choice_in_any_order() -> None:
    templates = [template("a"), template("b"), template("c")]

    def picked(seed: int, among: list[TemplateFact]) -> str:
        choice = pick_weighted_config(among, NOW, seed)
        assert choice is not None
        return choice.template.name

    names = [picked(seed, templates) for seed in range(30)]
    assert names == [picked(seed, templates[::-1]) for seed in range(30)]
    assert set(names) == {"a", "b", "c"}


def test_choices_follow_the_weights() -> None:
    templates = [template("a", weight=3), template("b"), template("never", weight=0)]
    choices = (pick_weighted_config(templates, NOW, seed) for seed in range(2000))
    counts = Counter(choice.template.name for choice in choices if choice)

    assert counts["never"] == 0
    assert 0.70 < counts["a"] / 2000 < 0.80


def test_nothing_is_chosen_when_all_weights_are_zero() -> None:
    assert pick_weighted_config([template("a", weight=0)], NOW, 1) is None
    assert pick_weighted_config([], NOW, 1) is None


def test_limits_are_per_template_gpu_and_day() -> None:
    def able(gpu: str = GPU, **changes: Any) -> bool:
        return may_run(TemplateFact(id=1, name="a", **changes), gpu)

    assert able()
    assert not able(running=1)
    assert able(running=1, most_running=2)
    assert not able(most_running=2, on_gpu={GPU: 1})
    assert able(most_running=2, on_gpu={"GPU-1": 1})
    assert not able(most_per_day=4, started_today=4)
    assert not able(gpus=0)
    assert able(gpu="", gpus=0)
