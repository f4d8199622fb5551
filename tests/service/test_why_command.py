from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gpucoord_site.cli import connection
from gpucoord_site.cli.jobs import what_if_lines, why, why_lines

BLOCKER = {
    "code": "UserMaxGpus",
    "text": "You have 2 of 2 GPUs.",
    "tier": "user limits",
    "requested": "1 GPU",
    "available": "0 of 2",
    "holder": None,
    "until": None,
}
WAITING = {
    "id": 42,
    "name": "train.py",
    "state": "queued",
    "text": "You have 2 of 2 GPUs.",
    "position": 3,
    "starts_p50": "2026-03-02T16:40:00+00:00",
    "starts_p90": "2026-03-02T18:10:00+00:00",
    "starts_after": None,
    "blockers": [BLOCKER],
    "factors": [{"name": "age", "value": 0.5, "weight": 1, "text": "it has waited 12 h"}],
}


def told(**changes: Any) -> list[str]:
    return list(why_lines(WAITING | changes))


def test_it_prints_all_reasons_by_tier_with_their_figures() -> None:
    said = told(blockers=[BLOCKER, BLOCKER | {"code": "GpuTaken", "tier": "others are there"}])

    assert said[0] == "job 42 (train.py): queued"
    assert said.index("user limits:") < said.index("others are there:")
    assert "    [UserMaxGpus; requested: 1 GPU; available: 0 of 2]" in said


def test_the_gpu_that_a_job_waits_for_is_not_called_available() -> None:
    taken = {"code": "GpuTaken", "gpu": 1, "requested": None, "available": None, "holder": "job 9"}

    assert "    [GpuTaken; on: GPU 1; held by: job 9]" in told(blockers=[BLOCKER | taken])


def test_it_prints_the_expected_start_and_the_priority_factors() -> None:
    said = told()

    assert said[1] == "number 3 in the queue"
    assert said[2].startswith("starts ~Mon 2 Mar")
    assert "in nine of ten cases before" in said[2]
    assert said[-1].endswith("██████████·········· it has waited 12 h")


def test_it_prints_the_year_of_a_start_in_another_year() -> None:
    assert told(starts_p50="2099-03-02T16:40:00+00:00")[2].startswith("starts ~Mon 2 Mar 2099 ")


def test_it_prints_the_only_known_time() -> None:
    assert "nine of ten" not in "\n".join(told(starts_p90=None))


def test_a_job_far_back_starts_after_those_that_are_predicted() -> None:
    said = told(starts_p50=None, starts_p90=None, starts_after="2026-03-02T16:40:00+00:00")

    assert said[2].startswith("starts after ~Mon 2 Mar")


def test_it_prints_an_unknown_start() -> None:
    assert "start time unknown" in told(starts_p50=None, starts_p90=None)


def test_a_job_that_can_never_start_says_so_instead_of_a_position() -> None:
    said = told(blockers=[BLOCKER | {"never": True}])

    assert "it can't start as it is" in said
    assert not any("in the queue" in line or "starts ~" in line for line in said)


def test_it_begins_with_the_headline_and_the_next_step() -> None:
    headline = {"headline": "alice's quota allows 2 GPUs at a time.", "next_step": "Wait."}

    assert told(headline=headline)[1] == "alice's quota allows 2 GPUs at a time. Wait."


def test_a_job_that_runs_has_no_reasons() -> None:
    said = told(state="running", text="It is running on GPU 0.")

    assert said == ["job 42 (train.py): running", "It is running on GPU 0."]


def test_a_job_that_was_just_submitted_is_looked_at_soon() -> None:
    assert "Within a second." in told(blockers=[], text="Within a second.")


def test_a_dry_run_prints_why_the_job_would_wait_and_that_nothing_was_submitted() -> None:
    said = list(what_if_lines(WAITING | {"starts_now": False}))

    assert said[:2] == ["it would wait", "number 3 in the queue"]
    assert "  You have 2 of 2 GPUs." in said
    assert said[-1] == "nothing was submitted"
    assert next(what_if_lines(WAITING | {"starts_now": True})) == "it would start now"


def test_a_terminal_gets_no_control_characters(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = WAITING | {"name": "a\x1b[31m\u202eevil", "blockers": [BLOCKER | {"text": "b\x9b\r"}]}
    monkeypatch.setattr(connection, "connect", lambda asked: Answers(answer))

    assert why(["42", "--token", "x"]) == 0

    shown = capsys.readouterr().out
    assert not set(shown) & set("\x1b\u202e\x9b\r")
    assert r"a\x1b[31m\u202eevil" in shown


class Answers:
    """A client that knows one answer."""

    def __init__(self, answer: dict[str, Any]) -> None:
        self._answer = answer

    def why(self, _job: int) -> dict[str, Any]:
        return self._answer

    def close(self) -> None: ...


def test_times_in_sentences_are_in_the_zone_of_this_computer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        at = (datetime.now(UTC) + timedelta(days=1)).replace(hour=20, minute=0)
        sentence = f"It does not start before {at:%a} {at.day} {at:%b} 20:00 (UTC)."
        said = told(blockers=[BLOCKER | {"text": sentence}])
    finally:
        monkeypatch.undo()
        time.tzset()

    shown = next(line for line in said if "does not start" in line)
    assert "05:00 JST" in shown
    assert "UTC" not in shown
