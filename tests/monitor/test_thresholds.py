from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

import pytest

from monitor.policy import thresholds


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True, slots=True, kw_only=True)
class Everything:
    share_pct: float = field(
        default=80.0, metadata={"label": "Share", "unit": "%", "least": 0, "most": 100}
    )
    count: int = field(default=3, metadata={"least": 1})
    on: bool = True
    cap: float | None = None
    names: tuple[str, ...] = ()
    steps: tuple[float, ...] = (1.0, 2.0)
    mode: Literal["pause", "slow"] = "slow"
    colour: Colour = Colour.RED
    days: tuple[Literal["Mon", "Tue"], ...] = ("Mon",)
    hours: tuple[int, ...] = field(default=(6,), metadata={"least": 0, "most": 23})


def problem(**values: object) -> str | None:
    return next(iter(thresholds.problems(Everything, values).values()), None)


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
def test_a_value_that_cannot_be_is_told_with_what_would_be_right(
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
    (got,) = thresholds.read(Everything, {name: value}).values()
    assert (got, type(got)) == (read, type(read))


def test_what_is_read_can_be_stored_and_read_again() -> None:
    known = thresholds.thresholds(Everything)
    for name, threshold in known.items():
        plain = threshold.plain(getattr(Everything(), name))
        assert threshold.accepts(plain)
        assert threshold.read(plain) == threshold.default


def test_values_of_other_times_are_passed_over() -> None:
    assert thresholds.read(Everything, {"gone": 1, "count": 0, "on": False}) == {"on": False}


def test_a_threshold_without_a_label_is_called_after_its_field() -> None:
    labels: dict[str, Any] = thresholds.thresholds(Everything)

    assert (labels["share_pct"].label, labels["colour"].label) == ("Share", "Colour")
