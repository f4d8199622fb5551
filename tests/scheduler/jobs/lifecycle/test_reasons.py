from __future__ import annotations

from datetime import timedelta

import pytest

from scheduler.dispatch.steps.dispatcher import (
    FIGURES_STORED_FOR,
    Reasons,
    StoredReasons,
    reason_keys,
)
from scheduler.facts.blockers import Blocker, BlockerCode, Tier
from tests.builders import NOW


def memory(free: str, gpu: int, job: int, requested: str = "30 GiB") -> Blocker:
    return Blocker(
        code=BlockerCode.GPU_MEMORY,
        gpu=gpu,
        jobs=(job,),
        requested=requested,
        available=f"{free} of 80 GiB on GPU {gpu}",
    )


FIRST, SECOND = memory("4 GiB", 2, 7), memory("3 GiB", 1, 8)
MEMORY = reason_keys((FIRST, SECOND))
OTHER_FIGURES = reason_keys((memory("5 GiB", 1, 8), memory("4 GiB", 2, 7)))
BUSY = Blocker(code=BlockerCode.PRESSURE, tier=Tier.MACHINE, gpu=0)
SOON = NOW + timedelta(minutes=59)


def test_of_a_job_that_is_new_all_is_news() -> None:
    assert StoredReasons({}, NOW).news({1: ()}, NOW) == [1]


def test_what_is_stored_is_no_news() -> None:
    assert StoredReasons({1: MEMORY}, NOW).news({1: MEMORY}, NOW + timedelta(days=9)) == []


def test_other_figures_and_another_order_are_news_after_an_hour() -> None:
    stored = StoredReasons({1: MEMORY}, NOW)

    assert stored.news({1: OTHER_FIGURES}, SOON) == []
    stored.keep({1: OTHER_FIGURES}, [], SOON)
    assert stored.news({1: OTHER_FIGURES}, NOW + FIGURES_STORED_FOR) == [1]
    stored.keep({1: OTHER_FIGURES}, [1], NOW + FIGURES_STORED_FOR)
    assert stored.news({1: MEMORY}, NOW + FIGURES_STORED_FOR + timedelta(minutes=59)) == []


@pytest.mark.parametrize(
    "key",
    [
        reason_keys((FIRST, SECOND, BUSY)),
        MEMORY[:1],
        reason_keys((memory("4 GiB", 2, 9), SECOND)),
        reason_keys((memory("4 GiB", 2, 7, requested="40 GiB"), SECOND)),
    ],
    ids=["one more", "one less", "another holder", "another wish"],
)
def test_all_else_is_news_at_once(key: Reasons) -> None:
    assert StoredReasons({1: MEMORY}, NOW).news({1: key}, NOW + timedelta(seconds=1)) == [1]


def test_who_waits_no_more_is_forgotten() -> None:
    stored = StoredReasons({1: MEMORY, 2: MEMORY}, NOW)
    stored.keep({2: MEMORY}, [], NOW)

    assert stored.news({1: MEMORY, 2: MEMORY}, NOW) == [1]
