from __future__ import annotations

from typing import Any

from gpucoord_site.why import lines, what_if_lines

BLOCKER = {
    "code": "UserMaxGpus",
    "text": "You have 2 of 2 GPUs.",
    "tier": "my limits",
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
    "blockers": [BLOCKER],
    "factors": [{"name": "age", "value": 0.5, "weight": 1, "text": "it has waited 12 h"}],
}


def told(**changes: Any) -> list[str]:
    return list(lines(WAITING | changes))


def test_it_tells_all_reasons_by_tier_with_their_figures() -> None:
    said = told(blockers=[BLOCKER, BLOCKER | {"code": "GpuTaken", "tier": "others are there"}])

    assert said[0] == "job 42 (train.py): queued"
    assert said.index("my limits:") < said.index("others are there:")
    assert "    [UserMaxGpus; asked 1 GPU; there 0 of 2]" in said


def test_it_tells_when_it_may_start_and_what_decides() -> None:
    said = told()

    assert said[1] == "number 3 in the queue"
    assert said[2].startswith("starts ~Mon 2 Mar")
    assert "in nine of ten cases before" in said[2]
    assert said[-1].endswith("██████████·········· it has waited 12 h")


def test_it_tells_the_one_time_that_it_knows() -> None:
    assert "nine of ten" not in "\n".join(told(starts_p90=None))


def test_it_admits_that_nobody_can_tell() -> None:
    assert "nobody can tell when it starts" in told(starts_p50=None, starts_p90=None)


def test_a_job_that_runs_has_no_reasons() -> None:
    said = told(state="running", text="It is running on GPU 0.")

    assert said == ["job 42 (train.py): running", "It is running on GPU 0."]


def test_a_job_that_was_just_submitted_is_looked_at_soon() -> None:
    assert "Within a second." in told(blockers=[], text="Within a second.")


def test_a_dry_run_tells_why_the_job_would_wait_and_that_nothing_was_submitted() -> None:
    said = list(what_if_lines(WAITING | {"starts_now": False}))

    assert said[:2] == ["it would wait", "number 3 in the queue"]
    assert "  You have 2 of 2 GPUs." in said
    assert said[-1] == "nothing was submitted"
    assert next(what_if_lines(WAITING | {"starts_now": True})) == "it would start now"
