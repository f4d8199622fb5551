from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.facts import formats
from tests.builders import GIB


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.1234, "0.123"),
        (1.234, "1.23"),
        (12.34, "12.3"),
        (99.96, "100"),
        (123.4, "123"),
        (1863.0, "1863"),
        (-2.5, "-2.50"),
        (None, "–"),
        (float("nan"), "–"),
    ],
)
def test_it_gives_three_significant_digits(value: float | None, text: str) -> None:
    assert formats.sig3(value) == text


@given(st.floats(min_value=1e-2, max_value=1e6))
def test_three_digits_are_within_half_a_percent(value: float) -> None:
    assert abs(float(formats.sig3(value)) - value) <= 0.0051 * value


def test_it_writes_memory_in_gib_and_much_of_it_in_tib() -> None:
    assert formats.gib(12.34 * GIB) == "12.3 GiB"
    assert formats.gib(0) == "0 GiB"
    assert formats.gib(1863 * GIB) == "1.82 TiB"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (59.9, "59 s"),
        (60, "1 min"),
        (41 * 60, "41 min"),
        (3 * 3600, "3 h"),
        (3 * 3600 + 20 * 60, "3 h 20 min"),
        (52 * 3600, "2 d 4 h"),
        (timedelta(days=3), "3 d"),
        (None, "–"),
    ],
)
def test_it_writes_durations_in_two_units_at_most(
    seconds: float | timedelta | None, text: str
) -> None:
    assert formats.duration(seconds) == text


def test_it_never_writes_the_unknown_as_zero() -> None:
    writers = (formats.gib, formats.percent, formats.watts, formats.celsius)

    assert [write(None) for write in writers] == ["–"] * 4


@pytest.mark.parametrize(
    ("pct", "words"),
    [
        (0.0, "has not used GPU 1 for 3 min"),
        (0.004, "has used less than 0.1 % of GPU 1 in the last 3 min"),
        (0.67, "has used 0.7 % of GPU 1 in the last 3 min"),
        (None, "has used an unknown part of GPU 1 in the last 3 min"),
    ],
)
def test_a_gpu_is_called_unused_only_if_no_use_was_measured(pct: float | None, words: str) -> None:
    assert formats.use_of("GPU 1", pct, timedelta(minutes=3)) == words


@pytest.mark.parametrize(
    ("count", "text"), [(1, "a0"), (3, "a0, a1, a2"), (5, "a0, a1, a2 and 2 more")]
)
def test_a_list_that_is_cut_counts_the_rest(count: int, text: str) -> None:
    assert formats.first_few([f"a{number}" for number in range(count)]) == text
