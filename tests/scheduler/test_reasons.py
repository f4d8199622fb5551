from __future__ import annotations

from datetime import timedelta

import pytest

from scheduler.reasons import FIGURES_FOR, Reasons, Told
from tests.builders import NOW

MEMORY: Reasons = (
    ("GpuMemory", "30 GiB", "4 GiB of 80 GiB on GPU 2", "job 7"),
    ("GpuMemory", "30 GiB", "3 GiB of 80 GiB on GPU 1", "job 8"),
)
OTHER_FIGURES: Reasons = (
    ("GpuMemory", "30 GiB", "5 GiB of 80 GiB on GPU 1", "job 8"),
    ("GpuMemory", "30 GiB", "4 GiB of 80 GiB on GPU 2", "job 7"),
)
SOON = NOW + timedelta(minutes=59)


def test_of_a_job_that_is_new_all_is_news() -> None:
    assert Told({}, NOW).news({1: ()}, NOW) == [1]


def test_what_is_stored_is_no_news() -> None:
    assert Told({1: MEMORY}, NOW).news({1: MEMORY}, NOW + timedelta(days=9)) == []


def test_other_figures_and_another_order_are_news_after_an_hour() -> None:
    told = Told({1: MEMORY}, NOW)

    assert told.news({1: OTHER_FIGURES}, SOON) == []
    told.keep({1: OTHER_FIGURES}, [], SOON)
    assert told.news({1: OTHER_FIGURES}, NOW + FIGURES_FOR) == [1]
    told.keep({1: OTHER_FIGURES}, [1], NOW + FIGURES_FOR)
    assert told.news({1: MEMORY}, NOW + FIGURES_FOR + timedelta(minutes=59)) == []


@pytest.mark.parametrize(
    "key",
    [
        (*MEMORY, ("Pressure", None, "GPU 0", None)),
        MEMORY[:1],
        (("GpuMemory", "30 GiB", "4 GiB of 80 GiB on GPU 2", "job 9"), MEMORY[1]),
        (("GpuMemory", "40 GiB", "4 GiB of 80 GiB on GPU 2", "job 7"), MEMORY[1]),
    ],
    ids=["one more", "one less", "another holder", "another wish"],
)
def test_all_else_is_news_at_once(key: Reasons) -> None:
    assert Told({1: MEMORY}, NOW).news({1: key}, NOW + timedelta(seconds=1)) == [1]


def test_who_waits_no_more_is_forgotten() -> None:
    told = Told({1: MEMORY, 2: MEMORY}, NOW)
    told.keep({2: MEMORY}, [], NOW)

    assert told.news({1: MEMORY, 2: MEMORY}, NOW) == [1]
