"""Decisions that follow from the state of a task in another engine, its files and its row."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.execution.engines.facts import TaskState
from scheduler.execution.engines.policy import (
    FILES_SETTLE,
    LOST_STARTED,
    LOST_UNSTARTED,
    REFUSED_AGAIN,
    SUBMIT_SETTLES,
    Claim,
    Phase,
    TaskAction,
    TaskView,
    next_task_action,
)
from tests.builders import NOW

SECOND = timedelta(seconds=1)


def action(phase: Phase, claim: Claim = Claim.NONE, **more: Any) -> TaskAction:
    return next_task_action(TaskView(phase=phase, claim=claim, **more), NOW)


def before(wait: timedelta) -> datetime:
    """So long ago that the wait is just over."""
    return NOW - wait


def test_a_new_task_is_submitted_once() -> None:
    assert action(Phase.QUEUED) is TaskAction.SUBMIT
    assert action(Phase.QUEUED, tried_at=NOW) is TaskAction.NONE


def test_a_submission_without_an_answer_is_repeated_only_after_a_list_without_it() -> None:
    tried = {"tried_at": before(SUBMIT_SETTLES + SECOND)}

    assert action(Phase.QUEUED, **tried) is TaskAction.NONE
    early = before(2 * SECOND) - SUBMIT_SETTLES
    assert action(Phase.QUEUED, **tried, answered_at=early) is TaskAction.NONE
    assert action(Phase.QUEUED, **tried, answered_at=NOW) is TaskAction.SUBMIT
    listed = {"answered_at": NOW, "state": TaskState.WAITING}
    assert action(Phase.QUEUED, **tried, **listed) is TaskAction.NONE


def test_a_refused_task_is_submitted_again_after_a_minute() -> None:
    later = before(REFUSED_AGAIN)

    assert action(Phase.QUEUED, refused=True, tried_at=later) is TaskAction.SUBMIT
    assert action(Phase.QUEUED, refused=True, tried_at=later + SECOND) is TaskAction.NONE


@pytest.mark.parametrize(
    ("gone", "wait"), [("missing_since", LOST_UNSTARTED), ("ended_since", FILES_SETTLE)]
)
def test_a_task_that_left_the_engine_unstarted_is_claimed_before_it_is_tried_again(
    gone: str, wait: timedelta
) -> None:
    task: dict[str, Any] = {"ref": "7", "tried_at": before(timedelta(minutes=5))}

    assert action(Phase.QUEUED, **task, **{gone: before(wait) + SECOND}) is TaskAction.NONE
    assert action(Phase.QUEUED, **task, **{gone: before(wait)}) is TaskAction.GIVE_UP


def test_a_task_that_slurm_puts_back_into_its_queue_is_left_there() -> None:
    back = {"ref": "7", "state": TaskState.WAITING, "ended_since": before(timedelta(minutes=5))}

    assert action(Phase.QUEUED, tried_at=NOW, **back) is TaskAction.NONE


def test_a_claimed_task_of_a_waiting_job_has_begun() -> None:
    assert action(Phase.QUEUED, Claim.RUNNER, ref="7") is TaskAction.ADOPT


def test_a_task_that_is_no_longer_wanted_is_claimed_then_stopped_then_closed() -> None:
    changed = {"ref": "7", "tried_at": NOW, "is_wanted": False}

    assert action(Phase.QUEUED, **changed) is TaskAction.GIVE_UP
    assert action(Phase.QUEUED, Claim.GIVEN_UP, **changed) is TaskAction.STOP
    over = {**changed, "missing_since": NOW}
    assert action(Phase.QUEUED, Claim.GIVEN_UP, **over) is TaskAction.CLOSE
    assert action(Phase.QUEUED, is_wanted=False) is TaskAction.CLOSE


def test_a_runner_that_was_faster_than_a_cancellation_is_stopped() -> None:
    assert action(Phase.OVER, Claim.RUNNER, ref="7") is TaskAction.STOP
    assert action(Phase.OVER, Claim.RUNNER, ref="7", has_result=True) is TaskAction.CLOSE


def test_a_task_that_ended_after_its_claim_did_not_start() -> None:
    task = {"ref": "7", "ended_since": NOW}

    assert action(Phase.QUEUED, Claim.GIVEN_UP, **task) is TaskAction.UNSTARTED


def test_the_end_of_a_task_that_was_withdrawn_says_nothing_about_its_job() -> None:
    ended = {"ended_since": before(timedelta(minutes=1)), "is_wanted": False}

    assert action(Phase.QUEUED, Claim.GIVEN_UP, ref="71", **ended) is TaskAction.CLOSE


def test_a_result_counts_whatever_the_engine_says() -> None:
    for state in (None, *TaskState):
        for since in (None, before(LOST_STARTED)):
            task = {"ref": "7", "state": state, "missing_since": since, "ended_since": since}
            assert action(Phase.PLACED, Claim.RUNNER, has_result=True, **task) is TaskAction.END


@pytest.mark.parametrize(
    ("gone", "wait"), [("missing_since", LOST_STARTED), ("ended_since", FILES_SETTLE)]
)
def test_a_job_without_a_result_is_lost_only_after_a_wait_and_without_a_living_runner(
    gone: str, wait: timedelta
) -> None:
    task: dict[str, Any] = {"ref": "7", "is_started": True, "is_recorded": True}
    task[gone] = before(wait)

    assert action(Phase.PLACED, Claim.RUNNER, **task) is TaskAction.LOST
    assert action(Phase.PLACED, Claim.RUNNER, **task, runner_alive=True) is TaskAction.NONE
    task[gone] += SECOND
    assert action(Phase.PLACED, Claim.RUNNER, **task) is TaskAction.NONE


def test_a_cancellation_comes_before_a_yield_request() -> None:
    task = {"ref": "7", "is_started": True, "is_recorded": True, "yield_requested": True}

    assert action(Phase.PLACED, Claim.RUNNER, **task) is TaskAction.YIELD
    assert action(Phase.PLACED, Claim.RUNNER, **task, stop_requested=True) is TaskAction.STOP


MOMENTS = st.none() | st.integers(0, 3600).map(lambda ago: NOW - ago * SECOND)
VIEWS = st.builds(
    TaskView,
    phase=st.sampled_from(Phase),
    claim=st.sampled_from(Claim),
    ref=st.sampled_from(["", "7"]),
    state=st.none() | st.sampled_from(TaskState),
    **{
        name: st.booleans()
        for name in (
            *("is_wanted", "is_started", "is_recorded", "has_result"),
            *("stop_requested", "yield_requested", "refused"),
        )
    },
    runner_alive=st.sampled_from([None, True]),
    **dict.fromkeys(("tried_at", "answered_at", "missing_since", "ended_since"), MOMENTS),
)


@given(VIEWS)
def test_nothing_is_submitted_that_has_been_claimed_or_is_placed(task: TaskView) -> None:
    if next_task_action(task, NOW) is TaskAction.SUBMIT:
        assert (task.phase, task.claim) == (Phase.QUEUED, Claim.NONE)
        assert task.is_wanted


@given(VIEWS)
def test_no_task_is_lost_while_its_runner_lives_or_with_a_result(task: TaskView) -> None:
    if next_task_action(task, NOW) is TaskAction.LOST:
        assert not task.has_result
        assert task.runner_alive is None
