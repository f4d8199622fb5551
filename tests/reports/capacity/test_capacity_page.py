"""The words of the page about a replay."""

from __future__ import annotations

from typing import Any

import pytest

from reports.capacity import pages

WAITS = {"jobs": 3, "p50_s": 1.0, "p90_s": 2.0, "waited_gpu_hours": 4891.0, "never": 0}


def replay(replayed: float, *alternatives: tuple[str, float | None]) -> dict[str, Any]:
    return {
        "recorded": WAITS | {"waited_gpu_hours": 267.0},
        "replayed": WAITS | {"waited_gpu_hours": replayed},
        "alternatives": [
            {
                "title": title,
                "figures": None if waited is None else WAITS | {"waited_gpu_hours": waited},
                "slowest": None,
                "starts_now": 0,
            }
            for title, waited in alternatives
        ],
    }


def test_options_with_equal_results_are_one_line() -> None:
    options = pages._options(
        replay(267, ("One H100 less", 9.0), ("GPU 7 split", 9.0), ("One H100 more", 1.0))
    )

    assert [one["title"] for one in options] == ["One H100 less · GPU 7 split", "One H100 more"]


def test_options_that_were_not_replayed_stay_apart() -> None:
    assert len(pages._options(replay(267, ("One less", None), ("One more", None)))) == 2


@pytest.mark.parametrize(("replayed", "is_given"), [(267, True), (300, True), (886, False)])
def test_a_replay_that_is_off_from_the_record_gives_no_advice(
    replayed: float, is_given: bool
) -> None:
    words = pages._no_advice(replay(replayed))

    assert (words == "") is is_given
    assert is_given or "886 GPU-h, but they waited 267 GPU-h" in words
