"""Step: act for this host's placed jobs: start, adopt, stop and end them; it never plans.

What it does about an attempt follows from its folder and /proc alone, so a new executor goes on
where a killed one stopped: adopting a running job is nothing special.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime

from monitor.identity import boot_id
from monitor.stepping import Guard
from monitor.wake import wake
from scheduler import endings, transitions
from scheduler.jobs import JobState
from scheduler.models import Attempt
from scheduler.policy.following import Claimant, Move, Sight, next_move
from scheduler.runner import attempts, files, leaving
from scheduler.runner.attempts import Look
from scheduler.runner.spawning import Spawner
from scheduler.specs import SpecWriter

ASK_AGAIN_S = 2.0
TAIL_BYTES = 16_384
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
        # Not put in order by the database: that reads all attempts that ever were.
        rows = Attempt.objects.filter(host=self._host, ended_at=None)
        found = rows.select_related("job__owner", "yield_request")
        still_open = sorted(found, key=lambda attempt: attempt.pk)
        self._forget_all_but({attempt.pk for attempt in still_open})
        seen = [self._see(one, now) for one in still_open if not self._just_runs(one)]
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

    def _just_runs(self, attempt: Attempt) -> bool:
        """As most do at most times: known, alive, not over, and nobody wants anything of it."""
        is_quiet = attempt.job.state == JobState.RUNNING.value and attempt.pid is not None
        if not is_quiet or hasattr(attempt, "yield_request"):
            return False
        runner = attempt.runner_pid, attempt.runner_start_ticks, attempt.boot_id
        return attempts.goes_on(self._specs.folder(attempt), *runner)

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
            is_asked=attempt.asked_to_leave is not None,
            may_stay=hasattr(attempt, "yield_request") and attempt.asked_to_leave is None,
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
                return lambda: endings.record(attempt, seen.look)
            case Move.YIELD:
                self._ask_to_yield(seen)
            case Move.STAY:
                leaving.withdraw(self._specs.folder(attempt), seen.look, attempt.nonce)
            case Move.END:
                tail, saved = self._tail(seen), self._has_saved(seen)
                return lambda: endings.end(attempt, seen.look, tail, now, has_saved=saved)
            case Move.NEVER_RAN:
                return lambda: endings.end_unstarted(attempt, now)
            case Move.GIVE_UP if attempts.give_up(self._specs.folder(attempt), attempt.nonce):
                return lambda: endings.end_unstarted(attempt, now)
            case Move.ABANDONED:
                return self._end_orphans(seen, now)
            case Move.RESTARTED:
                saved = self._has_saved(seen)
                return lambda: endings.lose(attempt, seen.look, RESTARTED, now, has_saved=saved)
        return None

    def _ask_to_yield(self, seen: Seen) -> None:
        """Again at each step: the runner does once what it is told often."""
        attempt, asked = seen.attempt, seen.attempt.yield_request
        request = leaving.Request(asked.text, asked.deadline.timestamp())
        if not leaving.ask(self._specs.folder(attempt), seen.look, attempt.nonce, request):
            attempts.ask_to_stop(seen.look)

    def _tail(self, seen: Seen) -> bytes:
        """The end of a failed job's log: it may say why."""
        result = seen.look.result
        if result is None or result.exit_code == 0:
            return b""
        return files.read_tail(self._specs.folder(seen.attempt) / files.LOG, TAIL_BYTES)

    def _has_saved(self, seen: Seen) -> bool:
        """Whether one that did not end well has left something to go on from."""
        job, result = seen.attempt.job, seen.look.result
        ended_well = result is not None and result.exit_code == 0
        return job.preemptible and not ended_well and self._specs.has_saved(job)

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
            attempts.end_confined(self._specs.folder(seen.attempt))
            saved = self._has_saved(seen)
            return lambda: endings.lose(seen.attempt, seen.look, ABANDONED, now, has_saved=saved)
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
