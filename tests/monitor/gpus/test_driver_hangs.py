from __future__ import annotations

from datetime import timedelta

from monitor.gpus.policy.changes import paused, resumes_at
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
