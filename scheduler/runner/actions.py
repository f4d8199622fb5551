"""Edge: reversible actions on foreign processes; never on another process with a reused pid."""

from __future__ import annotations

import fcntl
import os
import signal
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scheduler.runner import process_tree
from scheduler.runner.confine import caps
from scheduler.runner.launch import ROOT, interpreter

PERMIT_S = 20.0
LOCK_FD = 3
PROGRAM = (
    "import sys; sys.path.append(sys.argv[1]); "
    "from scheduler.runner.confine import caps; caps.serve(sys.argv[2:])"
)
GONE = "It has ended."
OURS = "It is gpucoord itself."
NOT_ALLOWED = "gpucoord may not do that to processes of others; it can when it runs as root."
NO_WAY_BACK = "Without privileges its priority could not be raised again afterwards."


@dataclass(frozen=True, slots=True)
class Target:
    """Exactly one process. key: name of the case in files."""

    key: str
    pid: int
    start_ticks: int
    in_container: bool = False


class ProcessControl:
    """Each method returns why it could not be done, None = it is done."""

    def __init__(self, folder: Path, cgroups: Path = caps.ROOT) -> None:
        self._folder = folder
        self._cgroups = cgroups
        self._keepers: list[int] = []

    def owner(self, target: Target) -> int | None:
        """The uid of the process; None: it has ended."""
        with suppress(OSError):
            uid = Path(f"/proc/{target.pid}").stat().st_uid
            return uid if _is_there(target) else None
        return None

    def look(self, target: Target) -> dict[str, Any] | None:
        """The state needed to undo the action; None: the process has ended."""
        if not _is_there(target):
            return None
        return {
            "priority": caps.read_priorities(target.pid),
            "cgroup": caps.read_caps(target.pid, self._cgroups),
        }

    def lower(self, target: Target, nice: int) -> str | None:
        if not caps.may_restore():
            return NO_WAY_BACK
        if problem := _problem(target):
            return problem
        try:
            caps.lower(target.pid, nice)
        except PermissionError:
            return NOT_ALLOWED
        return None

    def restore(self, target: Target, before: dict[str, Any]) -> None:
        if _is_there(target) and before.get("priority"):
            with suppress(PermissionError):
                caps.restore(target.pid, before["priority"])

    def cap(
        self, target: Target, before: dict[str, Any], cores: float, memory_bytes: int | None
    ) -> str | None:
        if problem := _problem(target):
            return problem
        return caps.cap(
            target.key,
            target.pid,
            before.get("cgroup"),
            cores=cores,
            memory_bytes=memory_bytes,
            in_container=target.in_container,
            root=self._cgroups,
        )

    def uncap(self, target: Target, before: dict[str, Any]) -> None:
        if before.get("cgroup"):
            caps.uncap(target.key, before["cgroup"], self._cgroups)

    def freeze(
        self, target: Target, run_s: float, stop_s: float, *, again: bool = False
    ) -> str | None:
        """Run the process in a duty cycle for PERMIT_S from now; repeat the call to continue."""
        self._reap()
        if problem := _problem(target):
            return problem
        if not _may_signal(target):
            return NOT_ALLOWED
        self._folder.mkdir(parents=True, exist_ok=True)
        caps.grant_permit(self._permit(target), PERMIT_S)
        with self._lock(target).open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return None
            if again:
                # One that was killed together with its keeper may have left it stopped.
                process_tree.signal_one(target.pid, target.start_ticks, signal.SIGCONT)
            self._start(target, run_s, stop_s, lock.fileno())
        return None

    def thaw(self, target: Target) -> None:
        self._permit(target).unlink(missing_ok=True)
        self._lock(target).unlink(missing_ok=True)
        self._reap()
        process_tree.signal_one(target.pid, target.start_ticks, signal.SIGCONT)

    def end(self, target: Target, *, kill: bool = False) -> str | None:
        if problem := _problem(target):
            return problem
        if not _may_signal(target):
            return NOT_ALLOWED
        number = signal.SIGKILL if kill else signal.SIGTERM
        if not process_tree.signal_one(target.pid, target.start_ticks, number):
            return GONE
        process_tree.signal_one(target.pid, target.start_ticks, signal.SIGCONT)
        return None

    def _start(self, target: Target, run_s: float, stop_s: float, lock: int) -> None:
        """The lock goes with it: as long as either of the two lives, it is held."""
        values = (target.pid, target.start_ticks, run_s, stop_s)
        arguments = [str(self._permit(target)), *map(str, values)]
        argv = [interpreter(), "-I", "-S", "-c", PROGRAM, str(ROOT), *arguments]
        nothing = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_RDWR, 0) for fd in (0, 1, 2)]
        environment = {"PATH": os.defpath, "LC_ALL": "C.UTF-8"}
        inherit_lock = (os.POSIX_SPAWN_DUP2, lock, LOCK_FD)
        self._keepers.append(
            os.posix_spawn(
                argv[0], argv, environment, file_actions=[*nothing, inherit_lock], setsid=True
            )
        )

    def _reap(self) -> None:
        for pid in tuple(self._keepers):
            try:
                ended, _ = os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:
                ended = pid
            if ended:
                self._keepers.remove(pid)

    def _permit(self, target: Target) -> Path:
        return self._folder / f"{target.key}.permit"

    def _lock(self, target: Target) -> Path:
        return self._folder / f"{target.key}.lock"


def _is_there(target: Target) -> bool:
    return process_tree.start_ticks_of(target.pid) == target.start_ticks


def _problem(target: Target) -> str | None:
    """Why nothing may be done to it at all."""
    if not _is_there(target):
        return GONE
    above = {os.getpid(), *_parents()}
    return OURS if target.pid in above or target.pid <= 1 else None


def _parents() -> list[int]:
    parents: list[int] = []
    pid = os.getppid()
    while pid > 1 and len(parents) < 64:
        parents.append(pid)
        relative = process_tree.process_info(pid)
        pid = relative.parent if relative else 0
    return parents


def _may_signal(target: Target) -> bool:
    try:
        os.kill(target.pid, 0)
    except OSError:
        return False
    return True
