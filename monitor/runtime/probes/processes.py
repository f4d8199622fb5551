"""Identity of a process, so that a reused pid is detected, and the service's processes.

The supervisor writes its state to DATA/run/service.json, for the status page.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import msgspec
from msgspec import Struct


@dataclass(frozen=True, slots=True)
class Identity:
    """A process of this boot. `start_ticks` is field 22 of /proc/PID/stat."""

    pid: int
    start_ticks: int
    boot_id: str


@cache
def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def start_ticks(pid: int) -> int | None:
    """Start time of `pid` in ticks since boot; None if it has ended or is a zombie."""
    fields = _stat(pid)
    return int(fields[19]) if fields else None


def cpu_ticks(pid: int) -> int | None:
    """CPU time that `pid` has used, in ticks; None if it has ended or is a zombie."""
    fields = _stat(pid)
    return int(fields[11]) + int(fields[12]) if fields else None


def _stat(pid: int) -> list[bytes]:
    """The fields of /proc/PID/stat after the program's name; empty if it has ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return []
    # The program's name, field 2, may contain spaces and parentheses.
    fields = stat.rpartition(b")")[2].split()
    return [] if fields[0] in (b"Z", b"X") else fields


def me() -> Identity:
    """This process. Not cached, because a fork changes the result."""
    pid = os.getpid()
    return Identity(pid, start_ticks(pid) or 0, boot_id())


def is_alive(pid: int | None, ticks: int | None, boot: str) -> bool:
    """Whether this exact process is still running on this host."""
    if pid is None or ticks is None or boot != boot_id():
        return False
    return start_ticks(pid) == ticks


FILE = "service.json"


class ChildState(Struct, frozen=True, kw_only=True):
    """A process that the supervisor keeps running; its descendants share its session."""

    name: str
    pid: int | None
    start_ticks: int | None
    since_t: float
    restarts: int = 0
    last_end: str = ""


class ListenerState(Struct, frozen=True, kw_only=True):
    """A socket on which the service listens, or should. problem: why it does not; "" = it does."""

    name: str
    address: str
    problem: str = ""


class ServiceState(Struct, frozen=True, kw_only=True):
    """`canary_*`: the last test task that the task cluster completed and acknowledged.

    models_address: of the endpoint for language models; "" = it does not listen.
    """

    pid: int
    boot_id: str
    command: str
    version: str
    address: str
    started_t: float
    children: tuple[ChildState, ...] = ()
    listeners: tuple[ListenerState, ...] = ()
    canary_t: float | None = None
    canary_s: float | None = None
    models_address: str = ""


def still_runs(state: ServiceState) -> bool:
    """Whether the supervisor that wrote it still runs."""
    try:
        command = Path(f"/proc/{state.pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return False
    return command == state.command and boot_id() == state.boot_id


def problem_of(folder: Path, listener: str) -> str:
    """Why this listener of the service does not listen; "" = it does, or is not wanted."""
    state = read(folder)
    listeners = state.listeners if state is not None else ()
    return next((each.problem for each in listeners if each.name == listener), "")


def write(folder: Path, state: ServiceState) -> None:
    """Replace the file atomically."""
    draft = folder / f".{FILE}.{os.getpid()}"
    draft.write_bytes(msgspec.json.encode(state))
    draft.replace(folder / FILE)


def read(folder: Path) -> ServiceState | None:
    """The last state written; None if there is none, or if another version wrote it."""
    try:
        return msgspec.json.decode((folder / FILE).read_bytes(), type=ServiceState)
    except (OSError, ValueError):
        return None
