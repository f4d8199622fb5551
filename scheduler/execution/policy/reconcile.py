"""What the executor does next for a placed attempt."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from scheduler.facts.jobs import JobState, Outcome

START_TIMEOUT = timedelta(seconds=30)
MAX_STARTS = 5
# After more refusals in a row than this, the job is paused with an exponential back-off.
REFUSALS_AT_ONCE = 2
FIRST_PAUSE, LONGEST_PAUSE = timedelta(seconds=10), timedelta(minutes=5)


class Claimant(StrEnum):
    """Who created the attempt's `claimed` file: a runner, or the executor to give it up."""

    UNCLAIMED = "unclaimed"
    RUNNER = "runner"
    GIVEN_UP = "given up"


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptState:
    """State of an attempt. `is_recorded`: its row has the identity of its processes."""

    state: JobState
    placed_at: datetime
    same_boot: bool
    claimant: Claimant
    runner_alive: bool
    is_started: bool
    is_recorded: bool
    has_result: bool
    yield_requested: bool = False
    yield_withdrawn: bool = False


class Action(StrEnum):
    """What to do for an attempt.

    NONE        wait
    START       request a runner (again)
    RECORD      store the identity of its processes
    STOP        tell the runner to end the job
    YIELD       tell the runner that the job must leave its GPUs
    STAY        tell the runner that the yield request is withdrawn
    END         it has a result: store it
    GIVE_UP     claim it, so that no runner can start it any more
    NEVER_RAN   it was given up, or its runner died before the job started
    ABANDONED   its runner and guardian died while the job ran
    RESTARTED   the machine restarted
    """

    NONE = "none"
    START = "start"
    RECORD = "record"
    STOP = "stop"
    YIELD = "yield"
    STAY = "stay"
    END = "end"
    GIVE_UP = "give up"
    NEVER_RAN = "never ran"
    ABANDONED = "abandoned"
    RESTARTED = "restarted"


# These actions may free GPUs.
ENDINGS = frozenset(
    {Action.END, Action.GIVE_UP, Action.NEVER_RAN, Action.ABANDONED, Action.RESTARTED}
)


def next_action(attempt: AttemptState, now: datetime) -> Action:
    """The action that is due now. A result takes precedence over everything else."""
    if attempt.has_result:
        return Action.END
    if not attempt.same_boot:
        return Action.RESTARTED
    if attempt.claimant is Claimant.GIVEN_UP:
        return Action.NEVER_RAN
    if attempt.claimant is Claimant.UNCLAIMED:
        is_late = now - attempt.placed_at > START_TIMEOUT
        is_unwanted = attempt.yield_requested or attempt.state is JobState.STOPPING
        return Action.GIVE_UP if is_late or is_unwanted else Action.START
    if not attempt.runner_alive:
        return Action.ABANDONED if attempt.is_started else Action.NEVER_RAN
    if attempt.is_started and not attempt.is_recorded:
        return Action.RECORD
    if attempt.state is JobState.STOPPING:
        return Action.STOP
    if attempt.yield_requested:
        return Action.YIELD
    return Action.STAY if attempt.yield_withdrawn else Action.NONE


def outcome_of(
    *, exit_code: int | None, stopped: str | None, cancel_requested: bool
) -> tuple[Outcome, str]:
    """The outcome, and a sentence if the exit code does not explain it."""
    if stopped == "time_limit":
        return Outcome.TIMED_OUT, "The job ran into its time limit."
    if stopped and cancel_requested:
        return Outcome.CANCELLED, ""
    if stopped in ("yield", "memory"):
        # Exit code 0 after SIGTERM does not count as success.
        return Outcome.FAILED, ""
    if stopped == "asked":
        return Outcome.FAILED, "The job was stopped from outside gpucoord, as by a shutdown."
    return (Outcome.SUCCEEDED if exit_code == 0 else Outcome.FAILED), ""


def backoff_after(refusals: int) -> timedelta | None:
    """Back-off after this many refusals in a row; None = retry at once, on other GPUs.

    The planner avoids a locked GPU, so continued refusals are a fault of the machine.
    """
    excess = refusals - REFUSALS_AT_ONCE
    return None if excess <= 0 else min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** min(excess - 1, 16))
