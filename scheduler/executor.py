"""Step: act for this host's placed jobs: start, adopt, stop and end them; it never plans.

What it does about an attempt follows from its folder and /proc alone, so a new executor goes on
where a killed one stopped: adopting a running job is nothing special.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

from monitor.identity import boot_id
from monitor.stepping import Guard
from monitor.wake import wake
from scheduler import transitions
from scheduler.jobs import JobState, Outcome
from scheduler.models import Attempt
from scheduler.policy.following import MOST_STARTS, Claimant, Move, Sight, next_move, outcome_of
from scheduler.runner import attempts
from scheduler.runner.attempts import Look
from scheduler.runner.spawning import Spawner
from scheduler.specs import SpecWriter
from scheduler.transitions import Ending, Identity

ASK_AGAIN_S = 2.0
UNSTARTED = "No runner took it up."
ENDING_ORPHANS = "Its runner was killed; what is left of the job is being ended."
ABANDONED = "Its runner was killed, so nobody can tell how the job ended; what was left was ended."
RESTARTED = "The machine restarted before the job had ended."
Change = Callable[[], object]
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Seen:
    """An open attempt's row beside what its folder shows, and what to do about it."""

    attempt: Attempt
    look: Look
    move: Move


class Executor:
    """`step(now)` follows every open attempt of `host`; `start` asks for runners at once."""

    def __init__(self, guard: Guard, host: str, specs: SpecWriter) -> None:
        self._guard = guard
        self._host = host
        self._specs = specs
        self._spawner = Spawner()
        self._asked_at: dict[int, datetime] = {}
        self._orphans_told_at: dict[int, datetime] = {}

    def open(self) -> None:
        self._spawner.open()

    def close(self) -> None:
        self._spawner.close()

    def step(self, now: datetime) -> dict[int, Move]:
        """Do what is due for each open attempt; returns the moves, by job."""
        rows = Attempt.objects.filter(host=self._host, ended_at=None).order_by("id")
        seen = [self._see(attempt, now) for attempt in rows.select_related("job__owner")]
        self._forget_all_but({one.attempt.pk for one in seen})
        due = [one for one in seen if one.move is not Move.NONE]
        changes = [change for one in due if (change := self._try_to_act(one, now))]
        if changes:
            with self._guard():
                for change in changes:
                    change()
                wake("live")
        self.start([one.attempt for one in due if one.move is Move.START], now)
        return {one.attempt.job_id: one.move for one in due}

    def start(self, placed: Iterable[Attempt], now: datetime) -> None:
        """Ask for runners. Asking twice is harmless: only one can claim the attempt."""
        for attempt in placed:
            last = self._asked_at.get(attempt.pk)
            if last is not None and (now - last).total_seconds() < ASK_AGAIN_S:
                continue
            self._asked_at[attempt.pk] = now
            try:
                self._spawner.spawn(self._specs.write(attempt))
            except (OSError, LookupError):
                about = {"kind": "JOB_START_FAILED", "job": attempt.job_id}
                logger.exception("Job %s can't be started now", attempt.job_id, extra=about)

    def _see(self, attempt: Attempt, now: datetime) -> Seen:
        look = attempts.look(self._specs.folder(attempt), attempt.nonce)
        sight = Sight(
            state=JobState(attempt.job.state),
            placed_at=attempt.placed_at,
            same_boot=attempt.boot_id == boot_id(),
            claimant=_claimant(look),
            runner_alive=look.runner_alive,
            is_started=look.started is not None,
            is_recorded=attempt.pid is not None,
            has_result=look.result is not None,
        )
        return Seen(attempt, look, next_move(sight, now))

    def _try_to_act(self, seen: Seen, now: datetime) -> Change | None:
        """One job that can't be helped now, as with a full disk, must not keep all others."""
        try:
            return self._act(seen, now)
        except OSError as error:
            about = {"kind": "JOB_STEP_FAILED", "job": seen.attempt.job_id}
            text = "Job %s: %s; trying again"
            logger.warning(text, seen.attempt.job_id, error, extra=about)
            return None

    def _act(self, seen: Seen, now: datetime) -> Change | None:
        """Act on files and processes; returns what then is to be written down."""
        attempt = seen.attempt
        match seen.move:
            case Move.STOP:
                attempts.ask_to_stop(seen.look)
            case Move.RECORD:
                return lambda: _record(seen)
            case Move.END:
                return lambda: _end(seen, now)
            case Move.NEVER_RAN:
                return lambda: _end_unstarted(attempt, now)
            case Move.GIVE_UP if attempts.give_up(self._specs.folder(attempt), attempt.nonce):
                return lambda: _end_unstarted(attempt, now)
            case Move.ABANDONED:
                return self._end_orphans(seen, now)
            case Move.RESTARTED:
                return lambda: _lose(seen, RESTARTED, now)
        return None

    def _end_orphans(self, seen: Seen, now: datetime) -> Change | None:
        """Politely first, then not; the job is lost when nothing is left of it."""
        started, told_at = seen.look.started, self._orphans_told_at.get(seen.attempt.pk)
        if started is None:
            return None
        number: int | None = signal.SIGTERM
        if told_at is not None:
            is_due = (now - told_at).total_seconds() >= self._specs.grace_s
            number = signal.SIGKILL if is_due else None
        if not attempts.end_orphans(started, number):
            return lambda: _lose(seen, ABANDONED, now)
        if told_at is not None:
            return None
        self._orphans_told_at[seen.attempt.pk] = now
        return lambda: transitions.stopping(seen.attempt, ENDING_ORPHANS, now)

    def _forget_all_but(self, still_open: set[int]) -> None:
        for memory in (self._asked_at, self._orphans_told_at):
            for gone in memory.keys() - still_open:
                del memory[gone]


def _claimant(look: Look) -> Claimant:
    if look.claimed is None:
        return Claimant.NOBODY
    return Claimant.RUNNER if look.claimed.runner else Claimant.QUITTER


def _record(seen: Seen) -> None:
    started = seen.look.started
    if started is None or seen.attempt.pid is not None:
        return
    identity = Identity(
        account=started.account,
        runner_pid=started.runner_pid,
        runner_start_ticks=started.runner_start_ticks,
        pid=started.pid,
        start_ticks=started.start_ticks,
        started_at=_time(started.started_at),
    )
    transitions.started(seen.attempt, identity)


def _end(seen: Seen, now: datetime) -> None:
    result = seen.look.result
    if result is None:
        return
    _record(seen)
    outcome, why = outcome_of(
        exit_code=result.exit_code,
        stopped=result.stopped,
        cancel_requested=seen.attempt.job.cancel_requested_at is not None,
    )
    ending = Ending(
        outcome=outcome,
        ended_at=_time(result.ended_at),
        exit_code=result.exit_code,
        signal=result.signal,
        problem=result.problem or why,
        cpu_s=result.cpu_s,
        peak_memory_bytes=result.peak_memory_bytes,
        log_bytes=result.log_bytes,
    )
    transitions.ended(seen.attempt, ending, now)


def _end_unstarted(attempt: Attempt, now: datetime) -> None:
    """It is certain that nothing of it ran: cancelled, or back into the queue, within reason."""
    if attempt.job.cancel_requested_at is not None:
        transitions.ended(attempt, Ending(outcome=Outcome.CANCELLED, ended_at=now), now)
    elif attempt.number >= MOST_STARTS:
        problem = f"It could not be started {MOST_STARTS} times. {UNSTARTED}"
        ending = Ending(outcome=Outcome.FAILED, ended_at=now, problem=problem)
        transitions.ended(attempt, ending, now)
    else:
        transitions.requeued(attempt, UNSTARTED, now)


def _lose(seen: Seen, problem: str, now: datetime) -> None:
    _record(seen)
    is_cancelled = seen.attempt.job.cancel_requested_at is not None
    outcome = Outcome.CANCELLED if is_cancelled else Outcome.LOST
    transitions.ended(seen.attempt, Ending(outcome=outcome, ended_at=now, problem=problem), now)


def _time(epoch_s: float) -> datetime:
    return datetime.fromtimestamp(epoch_s, UTC)
