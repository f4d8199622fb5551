from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.gpus.sampling.policy import (
    LONGEST_ABSENCE,
    Hang,
    hang_text,
    hung_call,
    left_out,
    paused,
    resumes_at,
    to_try,
)
from tests.builders import NOW


def test_after_the_first_hang_it_asks_again_soon() -> None:
    assert resumes_at([NOW]) == NOW + timedelta(seconds=5)


def test_after_a_second_hang_it_waits_a_minute() -> None:
    assert resumes_at([NOW, NOW - timedelta(minutes=2)]) == NOW + timedelta(minutes=1)


def test_a_hang_of_long_ago_is_forgotten() -> None:
    assert resumes_at([NOW, NOW - timedelta(hours=2)]) == NOW + timedelta(seconds=5)


def test_without_a_hang_nothing_waits() -> None:
    assert resumes_at([]) is None


def test_the_problem_and_its_remedy_are_reported() -> None:
    assert "hangs" in (paused().problem or "")
    assert "dmesg" in (paused().remedy or "")


def hangs(*minutes_ago: float, gpu: str = "GPU-a") -> list[Hang]:
    return [Hang(NOW - timedelta(minutes=ago), gpu, "nvmlX") for ago in minutes_ago]


def test_a_gpu_whose_call_hung_is_left_out_until_a_trial_shows_that_it_answers() -> None:
    assert left_out(hangs(300), {}) == {"GPU-a": "nvmlX"}
    assert left_out(hangs(300), {"GPU-a": NOW}) == {}
    assert left_out(hangs(1, 300), {"GPU-a": NOW - timedelta(minutes=2)}) == {"GPU-a": "nvmlX"}


@pytest.mark.parametrize(
    ("minutes_ago", "is_due"),
    [((0.9,), False), ((1.1,), True), ((3.9, 5, 7), False), ((4.1, 5, 7), True)],
)
def test_a_gpu_that_hangs_again_is_tried_later(
    minutes_ago: tuple[float, ...], is_due: bool
) -> None:
    assert to_try(hangs(*minutes_ago), {}, NOW) == ("GPU-a" if is_due else None)


def test_the_gpu_that_has_waited_longest_is_tried_first() -> None:
    both = [*hangs(2), *hangs(3, gpu="GPU-b")]
    assert to_try(both, {}, NOW) == "GPU-b"
    assert to_try(both, {"GPU-b": NOW}, NOW) == "GPU-a"


def test_a_hang_of_the_driver_as_a_whole_leaves_out_no_gpu() -> None:
    assert left_out(hangs(0.1, gpu=""), {}) == {}


@given(st.integers(1, 300))
def test_no_gpu_waits_longer_than_an_hour_for_a_trial(count: int) -> None:
    past = [Hang(NOW - LONGEST_ABSENCE, "GPU-a", "nvmlX")] * count
    assert to_try(past, {}, NOW) == "GPU-a"


def test_the_event_names_the_call_and_the_gpu() -> None:
    text = hang_text("nvmlDeviceGetName", "GPU-a", "sampler", 6.2)
    assert "nvmlDeviceGetName of GPU-a did not come back within 6 s. The sampler" in text
    assert hung_call(text) == "nvmlDeviceGetName"
