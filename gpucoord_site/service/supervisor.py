"""The supervisor: starts the web and task processes, restarts them, and stops everything."""

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

from gpucoord_site import __version__
from gpucoord_site.service import children
from gpucoord_site.service.children import (
    HANDLED,
    VARIABLE,
    Child,
    OnDemandChild,
    StandbyChild,
    kill_session,
)
from gpucoord_site.service.listeners import EndpointSocket, ListenerReport, LoginListener
from gpucoord_site.service.task_queue import (
    Watchdog,
    WebWatch,
    has_reports_to_write,
    run_cluster,
    run_report_cluster,
)
from monitor.runtime.probes import service_state
from monitor.runtime.probes.process_identity import boot_id
from monitor.runtime.probes.service_state import ListenerState, ServiceState
from monitor.runtime.rows import database
from monitor.runtime.rows.extensions import part
from monitor.runtime.rows.item_isolation import FaultLog

LOOK_EVERY_S = 0.5
# Time from the first signal to SIGKILL.
GRACE_S = 2.0
STOP_SIGNALS = set(HANDLED) - {signal.SIGCHLD}
logger = logging.getLogger(__name__)


class Supervisor:
    def __init__(
        self,
        listening: socket.socket,
        address: str,
        lock: int,
        logins: LoginListener | None = None,
        *,
        serves_web: bool = True,
        serves_logs: bool = False,
    ) -> None:
        self._listening, self._address, self._lock = listening, address, lock
        self._logins = logins
        self._listener_report = ListenerReport(settings.CONFIG.node)
        self._page_name = "web" if serves_web else "logs" if serves_logs else ""
        self._folder = Path(settings.DATA) / "run"
        self._lifeline, self._lifeline_end = os.pipe()
        self._signals, self._signals_end = os.pipe()
        self._started_t = time.time()
        self._watchdog = Watchdog()
        self._web_watch = WebWatch(listening)
        # Names of the actions that failed at their last try.
        self._failing: set[str] = set()
        self._faults = FaultLog(logger)
        self._is_file_gone = False
        self._recorded_listeners: tuple[ListenerState, ...] = ()
        self._options = _shorten_patience()
        self._web = Child("web", self._run_web, self._let_go)
        self._logs = Child("logs", self._run_logs, self._let_go)
        self._tasks = Child("tasks", self._run_tasks, self._let_go)
        self._reports = OnDemandChild("reports", self._run_reports, self._let_go)
        self._models = StandbyChild("models", self._run_models, self._let_go)
        host, port = listening.getsockname()[:2]
        self._endpoint = EndpointSocket(host, port)
        # The loops start first, because the first figures take them longer.
        self._children: tuple[Child, ...] = (self._tasks, self._reports, self._models)
        if serves_web:
            self._children = (self._tasks, self._web, self._reports, self._models)
        elif serves_logs:
            self._children = (self._tasks, self._logs, self._reports, self._models)
        else:
            # Otherwise browsers would connect and wait for an answer.
            listening.close()

    def start(self) -> None:
        children.adopt_orphans()
        self._listen_to_signals()
        for child in (self._tasks, self._web, self._logs):
            if child in self._children:
                self._start(child)
        self._record()

    def run(self) -> int:
        """Supervise until a signal; returns the exit code."""
        while not self._wait(LOOK_EVERY_S) & STOP_SIGNALS:
            for child, status in self._bury():
                child.ended(status)
                self._record()
            for child in self._children:
                if child.is_due(time.monotonic()):
                    self._start(child)
                    self._record()
            self._attempt(self._watch)
            self._attempt(self._look_for_reports)
            self._attempt(self._look_for_models)
            self._attempt(self._look_at_listeners)
            self._watch_database_file()
            self._watch_web()
        return self._stop()

    def _listen_to_signals(self) -> None:
        os.set_blocking(self._signals_end, False)
        os.set_blocking(self._signals, False)
        signal.set_wakeup_fd(self._signals_end, warn_on_full_buffer=False)
        for number in HANDLED:
            # Under nohup, a terminal that closes must not stop gpucoord.
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, lambda *_: None)

    def _wait(self, seconds: float) -> set[int]:
        """Sleep; returns the received signals, immediately when one arrives."""
        select.select([self._signals], [], [], seconds)
        with suppress(BlockingIOError):
            return set(os.read(self._signals, 4096))
        return set()

    def _start(self, child: Child) -> None:
        if child is self._tasks:
            self._attempt(self._watchdog.cluster_starts)
        elif child is self._web:
            self._web_watch.starts()
        # An open connection must not be shared with the child.
        connections.close_all()
        child.start()

    def _attempt(self, action: Callable[[], None]) -> None:
        """Run an action. The database may be away for a while, or its disk may be full."""
        name = action.__name__
        try:
            action()
            self._failing.discard(name)
        except Exception as error:
            connections.close_all()
            self._failing.add(name)
            text = "The supervisor can't look after the loops"
            self._faults.log(error, text, {"kind": "SUPERVISOR_FAULT"})

    def _watch_database_file(self) -> None:
        """Log once that the file is gone; web and loops check it themselves."""
        problem = database.file_problem()
        if problem and not self._is_file_gone:
            logger.error("%s", problem, extra={"kind": "DATABASE_FILE_GONE"})
        self._is_file_gone = problem is not None

    def _watch(self) -> None:
        if self._tasks.pid is None:
            return
        self._watchdog.ensure_loops()
        before = self._watchdog.canary_t
        if self._watchdog.is_cluster_dead():
            text = "The task process no longer takes tasks; it is replaced"
            logger.error(text, extra={"kind": "TASKS_STUCK"})
            self._tasks.kill()
        elif before != self._watchdog.canary_t:
            self._record()

    def _look_for_reports(self) -> None:
        """Long tasks have a cluster of their own, which runs only while there are some."""
        if self._reports.should_look(time.monotonic()):
            self._reports.is_wanted = has_reports_to_write()

    def _look_for_models(self) -> None:
        """The endpoint for language models runs while there is a model service."""
        before = self._endpoint.port
        self._endpoint.look()
        is_new = self._endpoint.port != before
        # Prompts need no port, so the process runs without one. A new port is inherited at a start.
        if self._models.pid is not None and self._models.is_wanted and is_new:
            self._models.signal(signal.SIGTERM)
        self._models.is_wanted = self._endpoint.is_needed

    def _look_at_listeners(self) -> None:
        """Try again what does not listen, and report it."""
        if self._logins is not None and self._logins.look() and self._web.pid is not None:
            # Connections to the pages wait in their socket meanwhile.
            self._web.signal(signal.SIGTERM)
        listeners = self._listeners()
        if listeners != self._recorded_listeners:
            self._record()
        self._listener_report.report(listeners)

    def _listeners(self) -> tuple[ListenerState, ...]:
        listeners = []
        if self._page_name:
            listeners.append(ListenerState(name=self._page_name, address=self._address))
        if self._endpoint.is_needed:
            address, problem = self._models_address(), self._endpoint.problem
            listeners.append(ListenerState(name="models", address=address, problem=problem))
        if self._logins is not None:
            path, problem = str(self._logins.path), self._logins.problem
            listeners.append(ListenerState(name="login", address=path, problem=problem))
        return tuple(listeners)

    def _watch_web(self) -> None:
        """Replace a web process that does not answer.

        Without the database it may be waiting for it, and a new process would wait as well.
        """
        if self._web.pid is None or self._failing:
            self._web_watch.starts()
        elif self._web_watch.is_stuck(self._web.pid):
            text = "The web process does not answer; it is replaced"
            logger.error(text, extra={"kind": "WEB_STUCK", "child": self._web.name})
            self._web.kill()
            self._web_watch.starts()

    def _bury(self) -> list[tuple[Child, int]]:
        """Reap all dead children; returns our own ones with their status.

        An adopted orphan (such as a job's runner) is only reaped. The rest of a child's session is
        killed while the session id is still its own.
        """
        dead = []
        while (pid := _next_dead()) is not None:
            child = next((c for c in self._children if c.pid == pid), None)
            if child:
                kill_session(pid)
            _, status = os.waitpid(pid, 0)
            if child:
                dead.append((child, status))
        return dead

    def _stop(self) -> int:
        """Cut the lifeline, then SIGTERM, then SIGKILL; a second signal shortens the wait."""
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
        if self._logins is not None:
            self._logins.remove()
        return 130 if hurried else 0

    def _record(self) -> None:
        self._recorded_listeners = self._listeners()
        state = ServiceState(
            pid=os.getpid(),
            boot_id=boot_id(),
            command=children.command_line(),
            version=__version__,
            address=self._address,
            started_t=self._started_t,
            children=tuple(child.state() for child in self._children if child.is_shown),
            canary_t=self._watchdog.canary_t,
            canary_s=self._watchdog.canary_s,
            models_address=self._models_address(),
            listeners=self._recorded_listeners,
        )
        with suppress(OSError):
            service_state.write(self._folder, state)

    def _models_address(self) -> str:
        """The page's address with the endpoint's port; "" = it does not listen yet."""
        port = self._endpoint.port
        if port is None:
            return ""
        return f"{self._address.rstrip('/').rpartition(':')[0]}:{port}/"

    def _let_go(self) -> None:
        """In a child: close what belongs to the supervisor alone."""
        for fd in (self._lock, self._lifeline_end, self._signals, self._signals_end):
            os.close(fd)
        self._web_watch.starts()
        os.environ[VARIABLE] = str(self._lifeline)
        connection.settings_dict["OPTIONS"] = self._options

    def _run_models(self) -> int:
        self._close_web()
        # Not imported at the top: no other process needs uvicorn.
        serve = part("gpucoord_site.service.model_endpoint:serve")
        return 0 if serve is None else int(serve(self._endpoint.listening))

    def _close_web(self) -> None:
        self._listening.close()
        if self._logins is not None:
            self._logins.close()

    def _run_web(self) -> int:
        self._endpoint.close()
        # Not imported at the top: it installs Twisted's reactor, which must not be shared.
        from gpucoord_site.service.web import serve

        return serve(self._listening, self._serve_logins)

    def _run_logs(self) -> int:
        self._endpoint.close()
        from gpucoord_site.service.log_server import serve

        return serve(self._listening)

    def _serve_logins(self) -> None:
        """In the web process: answer logins by OS account, in threads."""
        from gpucoord_site.accounts.local_login import LocalLogin

        if self._logins is not None and self._logins.listening is not None:
            socket_, address = self._logins.listening, self._logins.address
            LocalLogin(socket_, address, settings.CONFIG).start()

    def _run_tasks(self) -> int:
        self._close_web()
        self._endpoint.close()
        return run_cluster()

    def _run_reports(self) -> int:
        self._close_web()
        self._endpoint.close()
        return run_report_cluster()


def _shorten_patience() -> dict[str, object]:
    """Limit database timeouts so that signals are handled in time; returns the old values."""
    options: dict[str, object] = connection.settings_dict["OPTIONS"]
    shorter: dict[str, object] = {"timeout": 1}
    if connection.vendor == "postgresql":
        shorter = {"connect_timeout": 2, "options": "-c statement_timeout=2000"}
    connection.settings_dict["OPTIONS"] = options | shorter
    return options


def _next_dead() -> int | None:
    """The pid of a dead child that is not reaped yet; None if there is none."""
    with suppress(ChildProcessError):
        ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        return ended.si_pid if ended else None
    return None
