"""Edge: watch a job to its end: its exit, a time limit, a request to stop or to yield, leftovers.

The runner is the subreaper of all that the job starts: when it has no child left, the job
has none.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from scheduler.runner import process_tree
from scheduler.runner.confine.confinement import Confinement
from scheduler.runner.process_tree import GUARDIAN, ProcessInfo

# Edge: a small process above a runner, so that no single death loses an exit code.
#
#     guardian -> runner -> the job's first process
#
# The guardian waits for its runner. If the runner is killed, the job's processes become children
# of the guardian, which takes over as the runner. If the guardian is killed, the runner goes on
# alone. Only when both are killed is the exit code unknown. The guardian is forked ahead with its
# runner, so a job's start does not wait for it.


PR_SET_NAME = 15
PR_SET_CHILD_SUBREAPER = 36
RUNNER = "gpucoord-runner"
MESSAGE_BYTES, MOST_FILES = 4096, 250


class GuardedJob:
    """A job whose processes are children of this process; its state is sent to the guardian.

    Without a channel there is no guardian.
    """

    def __init__(self, leader: int, channel: socket.socket | None = None) -> None:
        self.leader = leader
        self.status: int | None = None
        self._channel = channel

    def processes(self) -> list[ProcessInfo]:
        return process_tree.descendants(os.getpid())

    def reap(self) -> bool:
        """Reap ended processes; True: none is left.

        The first process's status is sent before it is reaped, so it cannot get lost.
        """
        while True:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                if ended is None:
                    return False
                if ended.si_pid == self.leader:
                    self._tell({"status": _wait_status(ended)})
                pid, status = os.waitpid(ended.si_pid, 0)
            except ChildProcessError:
                return True
            if pid == self.leader:
                self.status = status

    def starts(self, folder: str, began: float, files: list[int]) -> None:
        """Send the state and open files that a takeover needs, before the job starts."""
        body = {"folder": folder, "leader": self.leader, "began": began}
        self._tell(body, files)

    def stopping(self, why: str) -> None:
        """The runner starts to stop the job."""
        self._tell({"stopped": why})

    def done(self) -> None:
        """The result is written, and nothing is left to do."""
        self._tell({"done": True})

    def _tell(self, message: dict[str, Any], files: list[int] | None = None) -> None:
        if self._channel is None:
            return
        flags = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL
        with suppress(OSError):
            socket.send_fds(self._channel, [json.dumps(message).encode()], files or [], flags)


@dataclass(slots=True)
class RunnerState:
    """The state that a guardian received from its runner."""

    runner: int
    folder: str = ""
    leader: int = 0
    began: float = 0.0
    status: int | None = None
    stopped: str | None = None
    done: bool = False
    # The pipe of the first process's errors, then the lock files.
    files: list[int] = field(default_factory=list)


def fork_runner() -> tuple[socket.socket, int] | RunnerState:
    """Fork the runner. In it: the channel to its guardian, and the guardian's pid.

    In the guardian it returns when the runner has ended, with the received state.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD, signal.SIGTERM, signal.SIGUSR1})
    for number in (signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    # Before the fork: on a busy machine the runner may have started the job, and be killed, before
    # this process runs again.
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    ours, peer = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    guardian = os.getpid()
    runner = os.fork()
    if runner == 0:
        ours.close()
        return peer, guardian
    peer.close()
    _become_guardian(ours.fileno())
    # It has no other child before that: all else belongs to the runner.
    os.waitpid(runner, 0)
    return _received(ours, runner)


def become_runner() -> None:
    """The guardian takes the place of its dead runner."""
    ctypes.CDLL(None).prctl(PR_SET_NAME, RUNNER.encode(), 0, 0, 0)


def _become_guardian(channel: int) -> None:
    # A signal to the runner's process group does not reach both.
    os.setsid()
    os.chdir("/")
    os.umask(0o077)
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
    os.closerange(3, channel)
    os.closerange(channel + 1, MESSAGE_BYTES)
    ctypes.CDLL(None).prctl(PR_SET_NAME, GUARDIAN.encode(), 0, 0, 0)


def _received(channel: socket.socket, runner: int) -> RunnerState:
    state = RunnerState(runner)
    with suppress(OSError):
        while True:
            text, files, _, _ = socket.recv_fds(
                channel, MESSAGE_BYTES, MOST_FILES, socket.MSG_DONTWAIT
            )
            if not text:
                break
            state.files += files
            for name, value in json.loads(text).items():
                setattr(state, name, value)
    return state


def _wait_status(ended: os.waitid_result) -> int:
    """The same number that os.waitpid would return."""
    if ended.si_code == os.CLD_EXITED:
        return (ended.si_status & 0xFF) << 8
    return ended.si_status | (0x80 if ended.si_code == os.CLD_DUMPED else 0)


LEFTOVER_GRACE_S = 2.0
KILL_AGAIN_S = 1.0
# From SIGTERM to SIGKILL, however late it was asked to yield.
LEAST_GRACE_S = 1.0
# A deadline that has moved by less is the same one.
SAME_S = 0.05
HANDLED_SIGNALS = frozenset({signal.SIGCHLD, signal.SIGTERM, signal.SIGUSR1})


@dataclass(frozen=True, slots=True)
class JobEnding:
    status: int
    stopped: str | None
    yielded: bool = False


class JobLostError(Exception):
    """Another process has collected the job's first process: its exit code is unknown."""


class Watch:
    """`run()` returns when no process of the job is left. HANDLED_SIGNALS must be blocked."""

    def __init__(
        self,
        job: GuardedJob,
        *,
        time_limit_s: float | None,
        grace_s: float,
        pass_on_yield: Callable[[], float | None],
        confinement: Confinement,
    ) -> None:
        self._job = job
        self._leader = job.leader
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
        self._leftovers_told = False
        # Processes that have been sent SIGTERM, by pid and start ticks: once is enough.
        self._terminated: set[tuple[int, int]] = set()

    def take_over(self, status: int | None, stopped: str | None) -> None:
        """Continue for a runner that has died, with its state."""
        self._job.status = status
        if (left := self._pass_on_yield()) is not None:
            self._set_leave(left)
        if stopped is not None:
            self._stop(stopped)

    def run(self) -> JobEnding:
        """Raises JobLostError."""
        heard = None
        while True:
            if self._job.reap():
                if self._job.status is None:
                    raise JobLostError
                return JobEnding(self._job.status, self._stopped, self._leave_at is not None)
            if self._job.status is not None:
                self._end_leftovers()
            elif heard == signal.SIGTERM:
                self._stop("asked")
            elif self._is_over(self._limit_at):
                self._stop("time_limit")
            elif self._confinement.is_over_memory:
                self._stop("memory")
            else:
                self._let_yield(heard == signal.SIGUSR1)
            if self._is_over(self._kill_at):
                self._kill()
            heard = self._wait()

    def _wait(self) -> int | None:
        runs_on = self._stopped is None and self._job.status is None
        ends = (self._limit_at, self._term_at) if runs_on else ()
        due = [at for at in (*ends, self._kill_at, self._confinement.beat()) if at is not None]
        if not due:
            return signal.sigwaitinfo(HANDLED_SIGNALS).si_signo
        received = signal.sigtimedwait(HANDLED_SIGNALS, max(0.0, min(due) - time.monotonic()))
        return received.si_signo if received else None

    def _let_yield(self, is_asked: bool) -> None:
        """Notify the job, so that it can leave by itself; stop it at the deadline."""
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
        self._job.stopping(why)
        self._termed_at = time.monotonic()
        self._kill_at = self._termed_at + self._grace_s
        self._confinement.let_go()
        self._terminate()

    def _terminate(self) -> None:
        """Send SIGTERM once to each process that the job has now, whatever session it is in.

        A process that is started later gets none: it may be saving the job's work.
        """
        processes = self._job.processes()
        # One call for the leader's group: no fork in between escapes it.
        # Its number is its own until it is collected.
        if self._job.status is None:
            with suppress(ProcessLookupError):
                os.killpg(self._leader, signal.SIGTERM)
        is_told = self._job.status is None
        others = [p for p in processes if not is_told or p.group != self._leader]
        process_tree.signal_all(others, signal.SIGTERM)
        process_tree.signal_all(processes, signal.SIGCONT)
        self._terminated |= {(p.pid, p.start_ticks) for p in processes}

    @staticmethod
    def _is_over(at: float | None) -> bool:
        return at is not None and time.monotonic() >= at

    def _end_leftovers(self) -> None:
        """The first process has ended, so the job is over: end the processes that remain.

        A job that was stopped keeps its whole grace period: a shell ends before its program.
        """
        if self._leftovers_told:
            return
        self._leftovers_told = True
        self._confinement.let_go()
        self._limit_at = None
        if self._kill_at is None:
            self._kill_at = time.monotonic() + min(self._grace_s, LEFTOVER_GRACE_S)
        remaining = self._job.processes()
        process_tree.signal_all(filter(self._needs_sigterm, remaining), signal.SIGTERM)

    def _needs_sigterm(self, process: process_tree.ProcessInfo) -> bool:
        """Not those that handle it already.

        One that does not handle it, and still lives, may have lost it between its fork and exec.
        """
        is_new = (process.pid, process.start_ticks) not in self._terminated
        return is_new or not process_tree.handles_signal(process.pid, signal.SIGTERM)

    def _kill(self) -> None:
        """Again and again until nothing is left: new ones may be born meanwhile."""
        self._confinement.kill()
        process_tree.signal_all(self._job.processes(), signal.SIGKILL)
        self._kill_at = time.monotonic() + KILL_AGAIN_S
