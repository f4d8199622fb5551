"""Edge: a small process above a runner, so that no single death loses an exit code.

    guardian -> runner -> the job's first process

The guardian waits for its runner. If the runner is killed, the job's processes become children of
the guardian, which takes over as the runner. If the guardian is killed, the runner goes on alone.
Only when both are killed is the exit code unknown. The guardian is forked ahead with its runner,
so a job's start does not wait for it.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from scheduler.runner import process_tree
from scheduler.runner.process_tree import GUARDIAN, ProcessInfo

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
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_NAME, GUARDIAN.encode(), 0, 0, 0)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


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
