"""One attempt in a folder of its own, run by a real runner, without rows."""

from __future__ import annotations

import os
import secrets
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from scheduler.runner import accounts, attempt_files, files
from scheduler.runner.attempt_files import AttemptFiles
from scheduler.runner.launch import RunnerStarter
from scheduler.runner.spec import Result, Spec, Started
from tests.pace import Stopwatch

# By it what a test leaves behind is found and killed: tests beside us have another.
NONCE = secrets.token_hex(16)


def wait_for(ready: Callable[[], Any], *, within_s: float = 10.0) -> Any:
    """Wait for a true value of `ready` and return it; fails when it takes too long."""
    watch = Stopwatch()
    while not (answer := ready()):
        assert not watch.has_run(within_s), f"waited {within_s} s in vain"
        time.sleep(0.005)
    return answer


def is_running(pid: int) -> bool:
    """False for a zombie too: nobody may be there to collect it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def doing(pid: int) -> str:
    """Pid, name, state and parent; then where in the kernel it waits."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text().split()[:4]
        return f"{' '.join(stat)} {Path(f'/proc/{pid}/wchan').read_text()}"
    except OSError as error:
        return f"{pid} {error.strerror}"


def kill_runners(started: Started) -> None:
    """SIGKILL for a runner and its guardian, so that neither can take over."""
    assert started.guardian_pid > 0
    for pid in (started.runner_pid, started.guardian_pid):
        os.kill(pid, signal.SIGSTOP)
    for pid in (started.runner_pid, started.guardian_pid):
        os.kill(pid, signal.SIGKILL)


class RunningAttempt:
    """Starts when made; `result()` waits for its end."""

    def __init__(self, spawner: RunnerStarter, folder: Path, *argv: str, **changes: Any) -> None:
        self.folder = folder
        self.spawner = spawner
        files.make_folder(folder)
        own = accounts.account_for("root", account=None, superuser=True, run_as="service")
        env = accounts.environment(
            own, changes.pop("env", {}), job_id=1, attempt=1, nonce=NONCE, gpu_uuids=()
        )
        facts: dict[str, Any] = {
            "job_id": 1,
            "attempt": 1,
            "nonce": NONCE,
            "argv": list(argv),
            "cwd": str(folder),
            "env": env,
            "account": own.name,
            "grace_s": 5.0,
            "wake_folder": str(folder / "run"),
        }
        spec = Spec(**(facts | changes))
        files.write_json(folder / files.SPEC, spec.to_json())
        self.spawn()

    def spawn(self) -> None:
        assert self.spawner.spawn(self.folder)

    def look(self) -> AttemptFiles:
        return attempt_files.read_attempt(self.folder, NONCE)

    def started(self) -> Started:
        start: Started = wait_for(lambda: self.look().started)
        return start

    def result(self, *, within_s: float = 10.0) -> Result:
        try:
            end: Result = wait_for(lambda: self.look().result, within_s=within_s)
        except AssertionError as error:
            error.add_note(self.described())
            raise
        return end

    def described(self) -> str:
        """Its files, and what its processes do."""
        started = self.look().started
        pids = (started.guardian_pid, started.runner_pid, started.pid) if started else ()
        names = sorted(path.name for path in self.folder.iterdir())
        return f"{names}, processes: {[doing(pid) for pid in pids]}"

    def log(self) -> str:
        return (self.folder / files.LOG).read_text()

    def wait_for_log(self, text: str) -> None:
        log = self.folder / files.LOG
        wait_for(lambda: log.exists() and text in log.read_text())

    def stop(self) -> None:
        wait_for(lambda: self.look().claimed)
        assert attempt_files.ask_to_stop(self.look())

    def kill_runner(self) -> None:
        """SIGKILL for the runner and its guardian."""
        kill_runners(self.started())
        wait_for(lambda: not self.look().runner_alive)
