"""How long a job waited for which blocker, from the text in its row."""

from __future__ import annotations

from datetime import timedelta

from scheduler.queue.planner import blockers as stored_blockers
from tests.builders import NOW

T = NOW.timestamp()


def log(*changes: tuple[float, str]) -> str:
    """(minutes after NOW, code)."""
    return "".join(
        stored_blockers.log_entry(code, NOW + timedelta(minutes=at)) for at, code in changes
    )


def test_the_blocker_of_the_longest_time_counts_also_if_it_came_several_times() -> None:
    text = log((0, "GpuTaken"), (20, "Pressure"), (45, "GpuTaken"))
    assert stored_blockers.seconds_by_blocker(text, T, T + 3600) == {
        "GpuTaken": 35 * 60,
        "Pressure": 25 * 60,
    }
    assert stored_blockers.longest_blocker(text, T, T + 3600) == "GpuTaken"


def test_only_the_time_of_the_wait_counts() -> None:
    text = log((0, "BeginTime"), (50, "GpuTaken"))
    assert stored_blockers.longest_blocker(text, T + 3000, T + 3600) == "GpuTaken"
    assert stored_blockers.longest_blocker(text, T + 3600, T + 3600) == ""


def test_an_empty_text_and_a_cut_beginning_are_no_error() -> None:
    assert stored_blockers.longest_blocker("", T, T + 60) == ""
    assert (
        stored_blockers.longest_blocker("2345 Gpu; 12 ;x;" + log((0, "Pressure")), T, T + 60)
        == "Pressure"
    )
