"""Edge: watch a job to its end: its exit, a time limit, a request to stop or to yield, leftovers.

The runner is the subreaper of all that the job starts: when it has no child left, the job
has none.
"""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from scheduler.runner import family
from scheduler.runner.confinement import Confinement

LEFTOVER_GRACE_S = 2.0
KILL_AGAIN_S = 1.0
# From SIGTERM to SIGKILL, however late it was asked to yield.
LEAST_GRACE_S = 1.0
# A deadline that has moved by less is the same one.
SAME_S = 0.05
HEARD = frozenset({signal.SIGCHLD, signal.SIGTERM, signal.SIGUSR1})


@dataclass(frozen=True, slots=True)
class Ending:
    status: int
    stopped: str | None
    yielded: bool = False


class Watch:
    """`run()` returns when no process of the job is left. HEARD must be blocked."""

    def __init__(
        self,
        leader: int,
        *,
        time_limit_s: float | None,
        grace_s: float,
        pass_on_yield: Callable[[], float | None],
        confinement: Confinement,
    ) -> None:
        self._leader = leader
        self._confinement = confinement
        self._grace_s = grace_s
        self._limit_at = None if time_limit_s is None else time.monotonic() + time_limit_s
        self._pass_on_yield = pass_on_yield
        # When it must have left, once it was asked to, and when it gets SIGTERM.
        self._leave_at: float | None = None
        self._term_at: float | None = None
        self._kill_at: float | None = None
        self._stopped: str | None = None
        self._termed_at = 0.0
        self._status: int | None = None
        self._leftovers_told = False

    def run(self) -> Ending:
        while True:
            heard = self._wait()
            childless = self._reap()
            if self._status is not None and childless:
                return Ending(self._status, self._stopped, self._leave_at is not None)
            if self._status is not None:
                self._end_leftovers()
            elif heard == signal.SIGTERM:
                self._stop("asked")
            elif self._is_over(self._limit_at):
                self._stop("time_limit")
            else:
                self._let_yield(heard == signal.SIGUSR1)
            if self._is_over(self._kill_at):
                self._kill()

    def _wait(self) -> int | None:
        runs_on = self._stopped is None and self._status is None
        ends = (self._limit_at, self._term_at) if runs_on else ()
        due = [at for at in (*ends, self._kill_at, self._confinement.beat()) if at is not None]
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

    def _let_yield(self, is_asked: bool) -> None:
        """First it is told, and may leave by itself; then it is stopped."""
        if is_asked and (left := self._pass_on_yield()) is not None:
            self._set_leave(left)
        if self._is_over(self._term_at):
            self._stop("yield")
        if self._stopped == "yield" and self._leave_at is not None and self._kill_at is not None:
            self._kill_at = min(self._kill_at, max(self._leave_at, self._termed_at + LEAST_GRACE_S))

    def _set_leave(self, left_s: float) -> None:
        """SIGTERM comes a grace before the end, but not in the first half of the time."""
        if left_s == math.inf:
            if self._stopped is None:
                self._leave_at = self._term_at = None
                self._confinement.cap_again()
            return
        leave_at = time.monotonic() + left_s
        if self._leave_at is None or abs(leave_at - self._leave_at) > SAME_S:
            self._leave_at = leave_at
            # It needs its time now, to save its work.
            self._confinement.let_go()
            self._term_at = leave_at - min(self._grace_s, left_s / 2)

    def _stop(self, why: str) -> None:
        if self._stopped is not None:
            return
        self._stopped = why
        self._termed_at = time.monotonic()
        self._kill_at = self._termed_at + self._grace_s
        self._confinement.let_go()
        # To the whole group: a shell that waits for its program would not pass it on.
        try:
            os.killpg(self._leader, signal.SIGTERM)
        except ProcessLookupError:
            # So young that it has no group yet; it is our child, so its number is still its own.
            os.kill(self._leader, signal.SIGTERM)
        with suppress(ProcessLookupError):
            os.killpg(self._leader, signal.SIGCONT)

    @staticmethod
    def _is_over(at: float | None) -> bool:
        return at is not None and time.monotonic() >= at

    def _end_leftovers(self) -> None:
        """The first process has ended: its job is over, and what it left behind goes too."""
        if self._leftovers_told:
            return
        self._leftovers_told = True
        self._confinement.let_go()
        grace_end = time.monotonic() + min(self._grace_s, LEFTOVER_GRACE_S)
        self._limit_at = None
        self._kill_at = grace_end if self._kill_at is None else min(self._kill_at, grace_end)
        family.signal_all(family.descendants(os.getpid()), signal.SIGTERM)

    def _kill(self) -> None:
        """Again and again until nothing is left: new ones may be born meanwhile."""
        self._confinement.kill()
        family.signal_all(family.descendants(os.getpid()), signal.SIGKILL)
        self._kill_at = time.monotonic() + KILL_AGAIN_S
