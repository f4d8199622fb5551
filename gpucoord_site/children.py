"""The supervisor's children: forked into sessions of their own, started again when they die."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from gpucoord_site import kernel
from monitor.identity import start_ticks
from monitor.service_state import ChildState

# A child that died may start again at once, as often as this within a minute; then it waits.
QUICK_RESTARTS = 2
LONGEST_PAUSE_S = 10.0
HANDLED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)
logger = logging.getLogger(__name__)


class Child:
    """A process that runs `main` until it ends; `own` closes what is the supervisor's alone."""

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
        # A signal between the fork and the child's own handlers would be told to the parent.
        signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)
        pid = os.fork()
        if pid == 0:
            self._become(parent)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED)
        gc.unfreeze()
        self.pid, self._ticks, self._since_t = pid, start_ticks(pid), time.time()
        self._restarts += 1

    def _become(self, parent: int) -> None:
        code = 1
        try:
            os.setsid()
            kernel.die_with_parent(parent)
            kernel.name_process(f"gpucoord-{self.name}")
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
        """It died: remember how, and when it may start again."""
        self._last_end = _how(status)
        now = time.monotonic()
        self._deaths.append(now)
        many = sum(1 for at in self._deaths if now - at < 60) - QUICK_RESTARTS
        pause = min(LONGEST_PAUSE_S, 0.5 * 2 ** (many - 1)) if many > 0 else 0.0
        self.due = now + pause
        after = f"in {pause:g} s" if pause else "at once"
        about = {"kind": "PROCESS_ENDED", "child": self.name, "how": self._last_end}
        text = "%s ended (%s); starting it again %s"
        logger.warning(text, self.name, self._last_end, after, extra=about)
        self.pid, self._since_t = None, time.time()

    def signal(self, number: int) -> None:
        if self.pid is not None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL it and all its session; it may be so young that it has none yet."""
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


def _how(status: int) -> str:
    code = os.waitstatus_to_exitcode(status)
    return f"exit code {code}" if code >= 0 else signal.Signals(-code).name


def kill_session(leader: int) -> None:
    """SIGKILL everything in the leader's group: its orphans would go on taking tasks."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)
