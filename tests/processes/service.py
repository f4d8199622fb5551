"""Starts `gpucoord up` as people do, on a data folder and port of its own; finds its parts."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import httpx

from monitor.runtime.probes import service_state
from monitor.runtime.probes.service_state import ServiceState
from scheduler.runner import files, process_tree
from scheduler.runner.guardian import RUNNER
from scheduler.runner.spec import Started
from tests.pace import LONGEST_S, Stopwatch

ROOT = Path(__file__).resolve().parents[2]
WORKERS = 6
# Names of the processes that belong to a job.
OF_JOBS = (process_tree.GUARDIAN, RUNNER)
NO_LIMITS_OF_THE_MACHINE = json.dumps(
    {
        "disk": {"warn_pct": 100, "clean_pct": 100, "block_pct": 100},
        "constraints": {"memory_busy_pct": 100, "memory_stall_pct": 100, "io_wait_pct": 100},
    }
)


T = TypeVar("T")


def wait_until(poll: Callable[[], T | None], seconds: float, purpose: str) -> T:
    """Call `poll` until it returns something true; fails with `purpose` if it never does."""
    watch = Stopwatch()
    while not (value := poll()):
        assert not watch.has_run(seconds), f"not within {seconds:g} s: {purpose}"
        time.sleep(0.02)
    return value


class Service:
    """One running gpucoord. `settings` names the Django settings; more environment by keyword.

    root: of the source; an earlier build has another one.
    """

    def __init__(
        self,
        data: Path,
        settings: str = "gpucoord_site.settings",
        *,
        root: Path = ROOT,
        **env: str,
    ) -> None:
        self.data = data
        self.root = root
        self.log = data.parent / f"{data.name}.log"
        self._env = {
            **{k: v for k, v in os.environ.items() if k != "DATABASE_URL"},
            "GPUCOORD_DATA": str(data),
            "GPUCOORD_PROBE": "simulated",
            "GPUCOORD_RUN_AS": "nobody",
            # No test depends on how full or busy the machine is.
            "GPUCOORD_POLICY": NO_LIMITS_OF_THE_MACHINE,
            "GPUCOORD_ADMIN_PASSWORD": "correct horse",
            "DJANGO_SETTINGS_MODULE": settings,
            "PYTHONPATH": str(root),
            **env,
        }
        self.since_start = Stopwatch()
        self._log_start = 0

    def start(self, *options: str) -> Service:
        self.since_start = Stopwatch()
        self._log_start = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "gpucoord_site", "up", "--port", "0", *options],
                env=self._env,
                cwd=self.root,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.address = wait_until(self._address, 20, f"an address in {self.log}")
        return self

    def _address(self) -> str | None:
        if self.process.poll() is not None:
            raise AssertionError(f"gpucoord ended: {self.text()}")
        match = re.search(r"is at (http://\S+)", self.text())
        return match[1] if match else None

    def text(self) -> str:
        """Its output since its last start."""
        return self.log.read_bytes()[self._log_start :].decode()

    def __enter__(self) -> Service:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self, number: int = signal.SIGTERM) -> tuple[int, float]:
        """Signal the supervisor; returns its exit code and the seconds until all had stopped."""
        watch = Stopwatch()
        family = self._of_the_service() if self.process.poll() is None else []
        self.process.send_signal(number)
        try:
            code = self.process.wait(LONGEST_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        try:
            wait_until(lambda: not any(map(lives, family)), 10, "all processes gone")
        except AssertionError as error:
            error.add_note("\n".join(f"lives: {command_line(pid)}" for pid in family if lives(pid)))
            raise
        return code, watch.seconds

    @property
    def database(self) -> Path:
        return self.data / "gpucoord.sqlite3"

    def state(self) -> ServiceState:
        return wait_until(lambda: service_state.read(self.data / "run"), 10, "service.json")

    def child(self, name: str) -> int:
        """The pid of the supervisor's child `web` or `tasks`."""
        pids = {c.name: c.pid for c in self.state().children}
        return pids[name] or 0

    def members(self) -> list[int]:
        """Workers, then the monitor, then the pusher, of a cluster in which none has died yet."""

        def all_there() -> list[int] | None:
            pids = sorted(children(self.child("tasks")))
            return pids if len(pids) == WORKERS + 2 else None

        return wait_until(all_there, 5, "all of the cluster's processes")

    def family(self) -> list[int]:
        pids = [self.process.pid]
        for pid in pids:
            pids += children(pid)
        return pids

    def _of_the_service(self) -> list[int]:
        """The family without jobs and their runners, which outlive the service on purpose.

        Guardians whose pool has ended are children of the supervisor.
        """
        pids = [self.process.pid]
        for pid in pids:
            if "scheduler.runner" not in command_line(pid):
                pids += [child for child in children(pid) if process_name(child) not in OF_JOBS]
        return pids

    def healthz(self) -> httpx.Response:
        return httpx.get(f"{self.address}healthz", timeout=LONGEST_S)


def token(service: Service, user: str = "admin") -> str:
    """A new token of this user."""
    done = subprocess.run(
        [sys.executable, "-m", "gpucoord_site", "token", user],
        env=service._env,
        cwd=service.root,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split()[-1]


def kill_jobs(data: Path) -> None:
    """Kill the runners, guardians and processes of all jobs that still run from this folder."""
    for path in data.glob("jobs/*/*/started.json"):
        body = files.read_json(path)
        started = None if body is None else Started.checked(body)
        if started is None:
            continue
        # The guardian first, so that it does not take over; 0: it has none.
        if started.guardian_pid:
            process_tree.signal_one(
                started.guardian_pid, started.guardian_start_ticks, signal.SIGKILL
            )
        process_tree.signal_one(started.runner_pid, started.runner_start_ticks, signal.SIGKILL)
        orphans = process_tree.orphans(started.pid, started.start_ticks, started.nonce)
        process_tree.signal_all(orphans, signal.SIGKILL)


def children(pid: int) -> list[int]:
    try:
        return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def process_name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def command_line(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return f"{pid}"
    return f"{pid} {b' '.join(words).decode(errors='replace')}"


def lives(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"
