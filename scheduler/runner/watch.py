"""Edge: watch a job to its end: its exit, a time limit, a request to stop, what it leaves behind.

The runner is the subreaper of all that the job starts: when it has no child left, the job
has none.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass

from scheduler.runner import family

LEFTOVER_GRACE_S = 2.0
KILL_AGAIN_S = 1.0
HEARD = frozenset({signal.SIGCHLD, signal.SIGTERM})


@dataclass(frozen=True, slots=True)
class Ending:
    status: int
    stopped: str | None


class Watch:
    """`run()` returns when no process of the job is left. HEARD must be blocked."""

    def __init__(self, leader: int, *, time_limit_s: float | None, grace_s: float) -> None:
        self._leader = leader
        self._grace_s = grace_s
        self._limit_at = None if time_limit_s is None else time.monotonic() + time_limit_s
        self._kill_at: float | None = None
        self._stopped: str | None = None
        self._status: int | None = None
        self._leftovers_told = False

    def run(self) -> Ending:
        while True:
            heard = self._wait()
            childless = self._reap()
            if self._status is not None and childless:
                return Ending(self._status, self._stopped)
            if self._status is not None:
                self._end_leftovers()
            elif heard == signal.SIGTERM:
                self._stop("asked")
            elif self._limit_at is not None and time.monotonic() >= self._limit_at:
                self._stop("time_limit")
            if self._kill_at is not None and time.monotonic() >= self._kill_at:
                self._kill()

    def _wait(self) -> int | None:
        limit_at = self._limit_at if self._stopped is None else None
        due = [at for at in (limit_at, self._kill_at) if at is not None]
        if not due:
            return signal.sigwaitinfo(HEARD).si_signo
        found = signal.sigtimedwait(HEARD, max(0.0, min(due) - time.monotonic()))
        return found.si_signo if found else None

    def _reap(self) -> bool:
        """Collect whoever has ended; True when no child is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return True
            if pid == 0:
                return False
            if pid == self._leader:
                self._status = status

    def _stop(self, why: str) -> None:
        if self._stopped is not None:
            return
        self._stopped = why
        self._kill_at = time.monotonic() + self._grace_s
        # To the whole group: a shell that waits for its program would not pass it on.
        try:
            os.killpg(self._leader, signal.SIGTERM)
        except ProcessLookupError:
            # So young that it has no group yet; it is our child, so its number is still its own.
            os.kill(self._leader, signal.SIGTERM)
        with suppress(ProcessLookupError):
            os.killpg(self._leader, signal.SIGCONT)

    def _end_leftovers(self) -> None:
        """The first process has ended: its job is over, and what it left behind goes too."""
        if self._leftovers_told:
            return
        self._leftovers_told = True
        grace_end = time.monotonic() + min(self._grace_s, LEFTOVER_GRACE_S)
        self._limit_at = None
        self._kill_at = grace_end if self._kill_at is None else min(self._kill_at, grace_end)
        family.signal_all(family.descendants(os.getpid()), signal.SIGTERM)

    def _kill(self) -> None:
        """Again and again until nothing is left: new ones may be born meanwhile."""
        family.signal_all(family.descendants(os.getpid()), signal.SIGKILL)
        self._kill_at = time.monotonic() + KILL_AGAIN_S
