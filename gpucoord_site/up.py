"""The supervisor: starts the web and the task process, keeps both alive, stops everything."""

from __future__ import annotations

import logging
import os
import select
import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from django.conf import settings
from django.db import connections

from gpucoord_site import __version__, kernel
from gpucoord_site.children import Child, kill_session
from gpucoord_site.cluster import run_cluster
from gpucoord_site.lifeline import VARIABLE
from gpucoord_site.serve import serve
from gpucoord_site.watchdog import Watchdog
from monitor import service_state
from monitor.identity import boot_id
from monitor.service_state import ServiceState

LOOK_EVERY_S = 0.5
# From the first signal to SIGKILL for what has not stopped.
GRACE_S = 2.0
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
logger = logging.getLogger(__name__)


class Supervisor:
    def __init__(self, listening: socket.socket, address: str, lock: int) -> None:
        self._listening, self._address, self._lock = listening, address, lock
        self._folder = Path(settings.DATA) / "run"
        self._lifeline, self._lifeline_end = os.pipe()
        self._signals, self._signals_end = os.pipe()
        self._started_t = time.time()
        self._watchdog = Watchdog()
        self._known_fault = ""
        self._web = Child("web", self._run_web, self._let_go)
        self._tasks = Child("tasks", self._run_tasks, self._let_go)

    def start(self) -> None:
        kernel.adopt_orphans()
        self._listen_to_signals()
        for child in (self._tasks, self._web):
            self._start(child)
        self._record()

    def run(self) -> int:
        """Supervise until a signal says stop; returns the exit code."""
        while not self._wait(LOOK_EVERY_S) & set(STOP_SIGNALS):
            self._reap()
            for child in (self._tasks, self._web):
                if child.pid is None and time.monotonic() >= child.due:
                    self._start(child)
                    self._record()
            self._attempt(self._watch)
        return self._stop()

    def _listen_to_signals(self) -> None:
        os.set_blocking(self._signals_end, False)
        os.set_blocking(self._signals, False)
        signal.set_wakeup_fd(self._signals_end, warn_on_full_buffer=False)
        for number in (*STOP_SIGNALS, signal.SIGCHLD):
            signal.signal(number, lambda *_: None)

    def _wait(self, seconds: float) -> set[int]:
        """Sleep; returns the signals that came, at once when one does."""
        select.select([self._signals], [], [], seconds)
        with suppress(BlockingIOError):
            return set(os.read(self._signals, 4096))
        return set()

    def _start(self, child: Child) -> None:
        if child is self._tasks:
            self._attempt(self._watchdog.cluster_starts)
        # An open connection must not be shared with the child.
        connections.close_all()
        child.start()

    def _attempt(self, action: Callable[[], None]) -> None:
        """The database may be away for a while; say so once, and go on."""
        try:
            action()
            self._known_fault = ""
        except Exception as error:
            connections.close_all()
            if self._known_fault != type(error).__name__:
                self._known_fault = type(error).__name__
                logger.exception("The supervisor can't look after the loops")

    def _watch(self) -> None:
        if self._tasks.pid is None:
            return
        self._watchdog.ensure_loops()
        seen = self._watchdog.canary_t
        if self._watchdog.is_cluster_dead():
            logger.error("The task process no longer takes tasks; it is replaced")
            kill_session(self._tasks.pid)
        elif seen != self._watchdog.canary_t:
            self._record()

    def _reap(self) -> None:
        """Learn who died: a child, or an orphan (a job's runner) that was left to us."""
        for pid, status in _ended():
            for child in (self._web, self._tasks):
                if child.pid == pid:
                    kill_session(pid)
                    child.ended(status)
                    self._record()

    def _stop(self) -> int:
        """Cut the lifeline, ask both children, then kill what is left; a second signal hurries."""
        os.close(self._lifeline_end)
        children = [child for child in (self._web, self._tasks) if child.pid is not None]
        for child in children:
            child.signal(signal.SIGTERM)
        left = {child.pid for child in children}
        deadline = time.monotonic() + GRACE_S
        hurried = False
        while left and not hurried and time.monotonic() < deadline:
            hurried = bool(self._wait(0.1) & set(STOP_SIGNALS))
            left -= {pid for pid, _ in _ended()}
        for child in children:
            if child.pid is not None:
                kill_session(child.pid)
        (self._folder / service_state.FILE).unlink(missing_ok=True)
        return 130 if hurried else 0

    def _record(self) -> None:
        state = ServiceState(
            pid=os.getpid(),
            boot_id=boot_id(),
            command=kernel.command_line(),
            version=__version__,
            address=self._address,
            started_t=self._started_t,
            children=[self._web.state(), self._tasks.state()],
            canary_t=self._watchdog.canary_t,
            canary_s=self._watchdog.canary_s,
        )
        with suppress(OSError):
            service_state.write(self._folder, state)

    def _let_go(self) -> None:
        """In a child: close what only the supervisor may hold."""
        for fd in (self._lock, self._lifeline_end, self._signals, self._signals_end):
            os.close(fd)
        os.environ[VARIABLE] = str(self._lifeline)

    def _run_web(self) -> None:
        serve(self._listening)

    def _run_tasks(self) -> int:
        self._listening.close()
        return run_cluster()


def _ended() -> list[tuple[int, int]]:
    found = []
    with suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            found.append((pid, status))
    return found
