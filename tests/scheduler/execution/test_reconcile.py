from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from scheduler.execution.policy import (
    Action,
    AttemptState,
    Claimant,
    next_action,
    outcome_of,
)
from scheduler.facts.jobs import JobState, Outcome
from tests.builders import NOW


def _move(after_s: float = 1, **changes: Any) -> Action:
    facts: dict[str, Any] = {
        "state": JobState.STARTING,
        "placed_at": NOW,
        "same_boot": True,
        "claimant": Claimant.UNCLAIMED,
        "runner_alive": False,
        "is_started": False,
        "is_recorded": False,
        "has_result": False,
    }
    return next_action(AttemptState(**(facts | changes)), NOW + timedelta(seconds=after_s))


RUNNER: dict[str, Any] = {"claimant": Claimant.RUNNER, "runner_alive": True}
RUNNING: dict[str, Any] = RUNNER | {"is_started": True, "is_recorded": True}


def test_it_starts_what_nobody_has_taken_up() -> None:
    assert _move() is Action.START


def test_it_gives_up_what_nobody_takes_up() -> None:
    assert _move(after_s=30) is Action.START
    assert _move(after_s=31) is Action.GIVE_UP


def test_it_gives_up_what_is_cancelled_before_it_is_taken_up() -> None:
    assert _move(state=JobState.STOPPING) is Action.GIVE_UP


def test_it_waits_for_a_runner_that_is_slow_to_start() -> None:
    assert _move(after_s=300, **RUNNER) is Action.NONE


def test_it_records_a_start_once() -> None:
    assert _move(**RUNNER, is_started=True) is Action.RECORD
    assert _move(**RUNNING) is Action.NONE


def test_it_stops_what_is_to_stop_even_before_it_has_started() -> None:
    assert _move(state=JobState.STOPPING, **RUNNER) is Action.STOP
    assert _move(state=JobState.STOPPING, **RUNNING) is Action.STOP


def test_a_job_that_is_to_leave_is_told_again_and_again() -> None:
    assert _move(**RUNNING, yield_requested=True) is Action.YIELD
    assert _move(state=JobState.STOPPING, **RUNNING, yield_requested=True) is Action.STOP


def test_a_job_that_is_to_leave_before_it_began_does_not_begin() -> None:
    assert _move(yield_requested=True) is Action.GIVE_UP


@pytest.mark.parametrize("state", [JobState.STARTING, JobState.RUNNING, JobState.STOPPING])
@pytest.mark.parametrize("same_boot", [True, False])
@pytest.mark.parametrize("runner_alive", [True, False])
def test_a_result_counts_above_all_else(
    state: JobState, same_boot: bool, runner_alive: bool
) -> None:
    facts = RUNNING | {"runner_alive": runner_alive}

    assert _move(state=state, same_boot=same_boot, has_result=True, **facts) is Action.END


def test_it_requeues_only_what_can_not_have_run() -> None:
    assert _move(claimant=Claimant.GIVEN_UP) is Action.NEVER_RAN
    assert _move(claimant=Claimant.RUNNER) is Action.NEVER_RAN
    assert _move(claimant=Claimant.RUNNER, is_started=True) is Action.ABANDONED


def test_after_a_reboot_nobody_can_tell() -> None:
    assert _move(same_boot=False) is Action.RESTARTED
    assert _move(same_boot=False, **RUNNING) is Action.RESTARTED


def _outcome(exit_code: int | None, stopped: str | None = None, cancelled: bool = False) -> Outcome:
    return outcome_of(exit_code=exit_code, stopped=stopped, cancel_requested=cancelled)[0]


def test_the_outcome_follows_from_how_it_ended() -> None:
    assert _outcome(0) is Outcome.SUCCEEDED
    assert _outcome(1) is Outcome.FAILED
    assert _outcome(None) is Outcome.FAILED
    assert _outcome(0, "time_limit") is Outcome.TIMED_OUT
    assert _outcome(0, "asked", cancelled=True) is Outcome.CANCELLED


def test_a_job_that_ended_by_itself_is_not_cancelled_afterwards() -> None:
    assert _outcome(0, cancelled=True) is Outcome.SUCCEEDED


def test_a_stop_that_nobody_asked_for_is_a_failure_with_a_reason() -> None:
    outcome, why = outcome_of(exit_code=None, stopped="asked", cancel_requested=False)

    assert outcome is Outcome.FAILED
    assert "shutdown" in why
