from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal

import pytest

from monitor.facts.thresholds import percent, threshold
from monitor.thresholds import policy


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True, slots=True, kw_only=True)
class Everything:
    share_pct: float = percent(80.0, "Share")
    count: int = threshold(3, "", ge=1)
    on: bool = True
    cap: float | None = None
    names: tuple[str, ...] = ()
    steps: tuple[float, ...] = (1.0, 2.0)
    mode: Literal["pause", "slow"] = "slow"
    colour: Colour = Colour.RED
    days: tuple[Literal["Mon", "Tue"], ...] = ("Mon",)
    hours: tuple[int, ...] = threshold((6,), "", ge=0, le=23)


def problem(**values: object) -> str | None:
    return next(iter(policy.problems(Everything, values).values()), None)


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("share_pct", 101, "is 101: it must be a number from 0 to 100."),
        ("share_pct", "80", 'is "80": it must be a number from 0 to 100.'),
        ("share_pct", True, "is True: it must be a number from 0 to 100."),
        ("share_pct", None, "is None: it must be a number from 0 to 100."),
        ("share_pct", float("nan"), "is nan: it must be a number from 0 to 100."),
        ("count", 0, "is 0: it must be a whole number of at least 1."),
        ("count", 1.5, "is 1.5: it must be a whole number of at least 1."),
        ("on", 1, "is 1: it must be true or false."),
        ("cap", "much", 'is "much": it must be a number.'),
        ("names", "blender", 'is "blender": it must be a list of names.'),
        ("names", [1], "is [1]: it must be a list of names."),
        ("steps", ["a"], "is ['a']: it must be a list of numbers."),
        ("mode", "stop", 'is "stop": it must be one of pause, slow.'),
        ("colour", "green", 'is "green": it must be one of red, blue.'),
        ("days", ["Sun"], "is ['Sun']: it must be a list of some of Mon, Tue."),
        ("hours", [24], "is [24]: it must be a list of numbers."),
        ("share_pc", 1, "is no threshold; did you mean share_pct?"),
        ("zzz", 1, "is no threshold."),
    ],
)
def test_an_invalid_value_is_reported_with_the_valid_ones(
    name: str, value: object, says: str
) -> None:
    assert problem(**{name: value}) == says


@pytest.mark.parametrize(
    ("name", "value", "read"),
    [
        ("share_pct", 0, 0.0),
        ("share_pct", 100.0, 100.0),
        ("count", 1, 1),
        ("on", False, False),
        ("cap", None, None),
        ("cap", 3, 3.0),
        ("names", ["blender", "obs"], ("blender", "obs")),
        ("steps", [1, 2.5], (1.0, 2.5)),
        ("mode", "pause", "pause"),
        ("colour", "blue", Colour.BLUE),
        ("days", ["Tue"], ("Tue",)),
        ("hours", [0, 23], (0, 23)),
    ],
)
def test_a_good_value_is_read_as_the_policy_has_it(name: str, value: object, read: object) -> None:
    assert problem(**{name: value}) is None
    (got,) = policy.usable(Everything, {name: value}).values()
    assert (got, type(got)) == (read, type(read))


def test_what_is_read_can_be_stored_and_read_again() -> None:
    for name, declared in policy.thresholds(Everything).items():
        plain = declared.plain(getattr(Everything(), name))
        assert declared.accepts(plain)
        assert declared.read(plain) == declared.default


def test_values_of_other_times_are_passed_over() -> None:
    assert policy.usable(Everything, {"gone": 1, "count": 0, "on": False}) == {"on": False}


def test_a_threshold_without_a_label_is_called_after_its_field() -> None:
    labels: dict[str, Any] = policy.thresholds(Everything)

    assert (labels["share_pct"].label, labels["colour"].label) == ("Share", "Colour")
