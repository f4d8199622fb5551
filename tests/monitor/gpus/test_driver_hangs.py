from __future__ import annotations

from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from monitor.gpus.policy.changes import (
    LONGEST_ABSENCE,
    Hang,
    hang_text,
    hung_call,
    left_out,
    paused,
    resumes_at,
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


def test_a_gpu_whose_call_hung_is_left_out_for_a_minute() -> None:
    assert left_out(hangs(0.9), NOW) == {"GPU-a": "nvmlX"}
    assert left_out(hangs(1.1), NOW) == {}


def test_a_gpu_that_hangs_again_is_left_out_for_longer() -> None:
    assert left_out(hangs(3.9, 5, 7), NOW) == {"GPU-a": "nvmlX"}
    assert left_out(hangs(4.1, 5, 7), NOW) == {}


def test_a_hang_of_the_driver_as_a_whole_leaves_out_no_gpu() -> None:
    assert left_out(hangs(0.1, gpu=""), NOW) == {}


@given(st.integers(1, 300))
def test_no_gpu_is_left_out_for_longer_than_an_hour(count: int) -> None:
    past = [Hang(NOW - LONGEST_ABSENCE, "GPU-a", "nvmlX")] * count
    assert left_out(past, NOW) == {}


def test_the_event_names_the_call_and_the_gpu() -> None:
    text = hang_text("nvmlDeviceGetName", "GPU-a", "sampler", 6.2)
    assert "nvmlDeviceGetName of GPU-a" in text
    assert hung_call(text) == "nvmlDeviceGetName"
