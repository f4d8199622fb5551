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
from django.db import connection, connections

from gpucoord_site import __version__, kernel
from gpucoord_site.children import HANDLED, Child, kill_session
from gpucoord_site.cluster import run_cluster
from gpucoord_site.lifeline import VARIABLE
from gpucoord_site.watchdog import Watchdog
from monitor import service_state
from monitor.identity import boot_id
from monitor.service_state import ServiceState

LOOK_EVERY_S = 0.5
# From the first signal to SIGKILL for what has not stopped.
GRACE_S = 2.0
STOP_SIGNALS = set(HANDLED) - {signal.SIGCHLD}
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
        self._options = _shorten_patience()
        self._web = Child("web", self._run_web, self._let_go)
        self._tasks = Child("tasks", self._run_tasks, self._let_go)
        # The loops first: they have more to do before there is something to see.
        self._children = (self._tasks, self._web)

    def start(self) -> None:
        kernel.adopt_orphans()
        self._listen_to_signals()
        for child in self._children:
            self._start(child)
        self._record()

    def run(self) -> int:
        """Supervise until a signal says stop; returns the exit code."""
        while not self._wait(LOOK_EVERY_S) & STOP_SIGNALS:
            for child, status in self._bury():
                child.ended(status)
                self._record()
            for child in self._children:
                if child.pid is None and time.monotonic() >= child.due:
                    self._start(child)
                    self._record()
            self._attempt(self._watch)
        return self._stop()

    def _listen_to_signals(self) -> None:
        os.set_blocking(self._signals_end, False)
        os.set_blocking(self._signals, False)
        signal.set_wakeup_fd(self._signals_end, warn_on_full_buffer=False)
        for number in HANDLED:
            # Under nohup a terminal that closes must not stop it.
            if signal.getsignal(number) is not signal.SIG_IGN:
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
                text = "The supervisor can't look after the loops"
                logger.exception(text, extra={"kind": "SUPERVISOR_FAULT"})

    def _watch(self) -> None:
        if self._tasks.pid is None:
            return
        self._watchdog.ensure_loops()
        seen = self._watchdog.canary_t
        if self._watchdog.is_cluster_dead():
            text = "The task process no longer takes tasks; it is replaced"
            logger.error(text, extra={"kind": "TASKS_STUCK"})
            self._tasks.kill()
        elif seen != self._watchdog.canary_t:
            self._record()

    def _bury(self) -> list[tuple[Child, int]]:
        """Reap all who died; returns our own children with their status.

        An orphan that was left to us (a job's runner) is only reaped. What a child leaves in its
        session is killed while its number still is its own.
        """
        found = []
        while (pid := _next_dead()) is not None:
            child = next((c for c in self._children if c.pid == pid), None)
            if child:
                kill_session(pid)
            _, status = os.waitpid(pid, 0)
            if child:
                found.append((child, status))
        return found

    def _stop(self) -> int:
        """Cut the lifeline, ask both children, then kill what is left; a second signal hurries."""
        os.close(self._lifeline_end)
        left = [child for child in self._children if child.pid is not None]
        for child in left:
            child.signal(signal.SIGTERM)
        deadline = time.monotonic() + GRACE_S
        hurried = False
        while left and not hurried and time.monotonic() < deadline:
            hurried = bool(self._wait(0.1) & STOP_SIGNALS)
            dead = {child for child, _ in self._bury()}
            left = [child for child in left if child not in dead]
        for child in left:
            child.kill()
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
            children=[child.state() for child in self._children],
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
        connection.settings_dict["OPTIONS"] = self._options

    def _run_web(self) -> int:
        # Not at the top: it brings Twisted's reactor, which must not be shared.
        from gpucoord_site.serve import serve

        return serve(self._listening)

    def _run_tasks(self) -> int:
        self._listening.close()
        return run_cluster()


def _shorten_patience() -> dict[str, object]:
    """Let no locked or silent database keep the supervisor from its signals; returns what was."""
    options: dict[str, object] = connection.settings_dict["OPTIONS"]
    shorter: dict[str, object] = {"timeout": 1}
    if connection.vendor == "postgresql":
        shorter = {"connect_timeout": 2, "options": "-c statement_timeout=2000"}
    connection.settings_dict["OPTIONS"] = options | shorter
    return options


def _next_dead() -> int | None:
    """The pid of a child that died and is not reaped yet; None when there is none."""
    with suppress(ChildProcessError):
        found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        return found.si_pid if found else None
    return None
