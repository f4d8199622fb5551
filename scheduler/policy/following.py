"""Policy: what to do about a placed attempt, from what its folder and /proc show."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from scheduler.jobs import JobState, Outcome

START_TIMEOUT = timedelta(seconds=30)
MOST_STARTS = 5
# Refusals of the runner after which the job pauses, and how long at first and at last.
REFUSALS_AT_ONCE = 2
FIRST_PAUSE, LONGEST_PAUSE = timedelta(seconds=10), timedelta(minutes=5)


class Claimant(StrEnum):
    """Who holds the attempt's `claimed` file: a runner may run it, a quitter gave it up."""

    NOBODY = "nobody"
    RUNNER = "runner"
    QUITTER = "quitter"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """What is seen of an attempt. `is_recorded`: our rows know its identity already.

    is_asked: it is to leave its GPUs; may_stay: it was to, and need not any more.
    """

    state: JobState
    placed_at: datetime
    same_boot: bool
    claimant: Claimant
    runner_alive: bool
    is_started: bool
    is_recorded: bool
    has_result: bool
    is_asked: bool = False
    may_stay: bool = False


class Move(StrEnum):
    """NONE wait · START ask (again) for a runner · RECORD write its identity down · STOP ask the

    runner to end the job · YIELD ask it to let the job leave · STAY tell it that the job may stay ·

    END it has a result · GIVE_UP claim it, so that no runner can · NEVER_RAN it is given up, or its
    runner died before letting the job go · ABANDONED its runner died while the job ran · RESTARTED
    the machine did.
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


# After these a job may have left its place to others.
ENDINGS = frozenset({Move.END, Move.GIVE_UP, Move.NEVER_RAN, Move.ABANDONED, Move.RESTARTED})


def next_move(sight: Sight, now: datetime) -> Move:
    """The one thing to do now. The result counts above all else."""
    if sight.has_result:
        return Move.END
    if not sight.same_boot:
        return Move.RESTARTED
    if sight.claimant is Claimant.QUITTER:
        return Move.NEVER_RAN
    if sight.claimant is Claimant.NOBODY:
        is_late = now - sight.placed_at > START_TIMEOUT
        is_unwanted = sight.is_asked or sight.state is JobState.STOPPING
        return Move.GIVE_UP if is_late or is_unwanted else Move.START
    if not sight.runner_alive:
        return Move.ABANDONED if sight.is_started else Move.NEVER_RAN
    if sight.is_started and not sight.is_recorded:
        return Move.RECORD
    if sight.state is JobState.STOPPING:
        return Move.STOP
    if sight.is_asked:
        return Move.YIELD
    return Move.STAY if sight.may_stay else Move.NONE


def outcome_of(
    *, exit_code: int | None, stopped: str | None, cancel_requested: bool
) -> tuple[Outcome, str]:
    """How it ended, and in words what the exit code does not say."""
    if stopped == "time_limit":
        return Outcome.TIMED_OUT, "The job ran into its time limit."
    if stopped and cancel_requested:
        return Outcome.CANCELLED, ""
    if stopped == "yield":
        # What it says at SIGTERM is no success.
        return Outcome.FAILED, ""
    if stopped == "asked":
        return Outcome.FAILED, "The job was stopped from outside gpucoord, as by a shutdown."
    return (Outcome.SUCCEEDED if exit_code == 0 else Outcome.FAILED), ""


def pause_after(refusals: int) -> timedelta | None:
    """How long a job waits that a runner has refused so often in a row; None = other GPUs may do.

    The lock of one GPU is told to the planner; what goes on is wrong with the machine.
    """
    over = refusals - REFUSALS_AT_ONCE
    return None if over <= 0 else min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** min(over - 1, 16))
