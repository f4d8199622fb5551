"""The supervisor's child processes, each in a session of its own, restarted when they die.

Uses Linux prctl: adopt orphans, die with the parent, name a process.
"""

from __future__ import annotations

import ctypes
import gc
import logging
import os
import select
import signal
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from gpucoord_site.service.logs import LogStream
from monitor.runtime.probes.process_identity import start_ticks
from monitor.runtime.probes.service_state import ChildState

PR_SET_PDEATHSIG = 1
PR_SET_NAME = 15
PR_SET_CHILD_SUBREAPER = 36
libc = ctypes.CDLL(None, use_errno=True)


def adopt_orphans() -> None:
    """Become the parent of descendants whose parent dies, so that their end can be reaped."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(parent: int) -> None:
    """Receive SIGTERM when the parent dies; exit at once if it is dead already."""
    _prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        os._exit(1)


def name_process(name: str) -> None:
    """Set the name that `ps -o comm` and `top` show; at most 15 bytes."""
    libc.prctl(PR_SET_NAME, ctypes.c_char_p(name.encode()), 0, 0, 0)


def _prctl(option: int, value: int) -> None:
    if libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}) failed")


def session_members(session: int) -> Iterator[int]:
    """The pids of a session, without zombies."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and _session(entry) == session:
            yield int(entry.name)


def _session(entry: Path) -> int | None:
    try:
        fields = (entry / "stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in (b"Z", b"X") else int(fields[3])


def command_line(pid: int | str = "self") -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""


# A child that died restarts at once, this many times per minute; then with a delay.
QUICK_RESTARTS = 2
LONGEST_PAUSE_S = 10.0
# Interval of the checks for work of an on-demand child.
LOOK_EVERY_S = 3.0
HANDLED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)
logger = logging.getLogger(__name__)


class Child:
    """A process that runs `main` until it ends; `own` closes what the supervisor alone holds."""

    def __init__(self, name: str, main: Callable[[], int | None], own: Callable[[], None]) -> None:
        self.name = name
        self.pid: int | None = None
        self.due = 0.0
        self._main, self._own = main, own
        self._deaths: deque[float] = deque(maxlen=20)
        self._ticks: int | None = None
        self._since_t = time.time()
        self._restarts = -1
        self._last_end = ""

    def start(self) -> None:
        """Fork. What is loaded already is shared, so that a start takes no second."""
        parent = os.getpid()
        gc.freeze()
        # A signal between the fork and the child's own handlers would reach the parent's handlers.
        signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)
        try:
            pid = os.fork()
            if pid == 0:
                self._become(parent)
        except OSError as error:
            self._not_started(error)
            return
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED)
            gc.unfreeze()
        self.pid, self._ticks, self._since_t = pid, start_ticks(pid), time.time()
        self._restarts += 1

    def _become(self, parent: int) -> None:
        code = 1
        try:
            os.setsid()
            die_with_parent(parent)
            name_process(f"gpucoord-{self.name}")
            # Warnings and tracebacks must not wait for a reader either.
            sys.stdout, sys.stderr = LogStream(1), LogStream(2)
            signal.set_wakeup_fd(-1)
            for number in HANDLED:
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED)
            self._own()
            code = self._main() or 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
        except BaseException:
            traceback.print_exc()
        finally:
            with suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)

    def ended(self, status: int) -> None:
        """Record how it died, and when it may start again."""
        self._last_end = _how(status)
        after = self._delay_start()
        about = {"kind": "PROCESS_ENDED", "child": self.name, "how": self._last_end}
        text = "%s ended (%s); starting it again %s"
        logger.warning(text, self.name, self._last_end, after, extra=about)
        self.pid, self._since_t = None, time.time()

    def _not_started(self, error: OSError) -> None:
        """The machine has no memory or process left: counts as a death."""
        self._last_end = f"fork failed: {error.strerror}"
        after = self._delay_start()
        about = {"kind": "PROCESS_START_FAILED", "child": self.name, "how": self._last_end}
        text = "%s cannot be started (%s); trying again %s"
        logger.error(text, self.name, self._last_end, after, extra=about)

    def _delay_start(self) -> str:
        """Set when it may start; returns this in words."""
        now = time.monotonic()
        self._deaths.append(now)
        many = sum(1 for at in self._deaths if now - at < 60) - QUICK_RESTARTS
        pause = min(LONGEST_PAUSE_S, 0.5 * 2 ** (many - 1)) if many > 0 else 0.0
        self.due = now + pause
        return f"in {pause:g} s" if pause else "at once"

    def signal(self, number: int) -> None:
        if self.pid is not None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    @property
    def is_shown(self) -> bool:
        """Whether the status page lists it."""
        return True

    def is_due(self, at: float) -> bool:
        """Whether it must be started now; `at`: seconds of `monotonic`."""
        return self.pid is None and at >= self.due

    def kill(self) -> None:
        """Send SIGKILL to it and its session; a very new child has no session yet."""
        self.signal(signal.SIGKILL)
        if self.pid is not None:
            kill_session(self.pid)

    def state(self) -> ChildState:
        return ChildState(
            name=self.name,
            pid=self.pid,
            start_ticks=self._ticks if self.pid else None,
            since_t=self._since_t,
            restarts=max(0, self._restarts),
            last_end=self._last_end,
        )


class OnDemandChild(Child):
    """A child that runs only while there is work for it, and ends by itself with exit code 0."""

    is_wanted = False
    _looked_t = -LOOK_EVERY_S

    @property
    def is_shown(self) -> bool:
        return self.pid is not None or bool(self._last_end)

    def is_due(self, at: float) -> bool:
        return self.is_wanted and super().is_due(at)

    def should_look(self, at: float) -> bool:
        """Whether to look for work now: every LOOK_EVERY_S while it does not run."""
        if self.pid is not None or at - self._looked_t < LOOK_EVERY_S:
            return False
        self._looked_t = at
        return True

    def ended(self, status: int) -> None:
        self.is_wanted = False
        if os.waitstatus_to_exitcode(status):
            super().ended(status)
        else:
            self.pid, self._since_t, self._last_end = None, time.time(), ""


class StandbyChild(OnDemandChild):
    """A child that runs as long as it is wanted: it starts again when it has ended."""

    def ended(self, status: int) -> None:
        if self.is_wanted:
            Child.ended(self, status)
        else:
            self.pid, self._since_t, self._last_end = None, time.time(), ""


def _how(status: int) -> str:
    code = os.waitstatus_to_exitcode(status)
    return f"exit code {code}" if code >= 0 else signal.Signals(-code).name


def kill_session(leader: int) -> None:
    """Send SIGKILL to the leader's process group: orphans would continue to take tasks."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


# The lifeline: a pipe whose write end only the supervisor has. Its end of file means: stop.


VARIABLE = "GPUCOORD_LIFELINE"


class Readable(Protocol):
    def fileno(self) -> int: ...


class Lifeline:
    """Tells a worker whether its supervisor and its parent are alive."""

    def __init__(self) -> None:
        self._fd = int(os.environ.get(VARIABLE, "-1"))
        self._parent = os.getppid()

    def is_cut(self) -> bool:
        """Whether the supervisor or the original parent of this process has ended."""
        return os.getppid() != self._parent or bool(self._fd >= 0 and _readable([self._fd], 0))

    def wait(self, seconds: float, *others: Readable) -> bool:
        """Sleep until the time is over, one of `others` is readable, or the lifeline is cut.

        Returns whether one of `others` is readable.
        """
        fds = [o.fileno() for o in others]
        lifeline = [self._fd] if self._fd >= 0 else []
        return bool(set(_readable(lifeline + fds, max(0.0, seconds))) & set(fds))


def _readable(fds: Sequence[int], seconds: float) -> list[int]:
    if not fds:
        time.sleep(seconds)
        return []
    poll = select.poll()
    for fd in fds:
        poll.register(fd, select.POLLIN)
    return [fd for fd, _ in poll.poll(seconds * 1000)]
