"""The supervisor's state in DATA/run/service.json, for the status page."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
from msgspec import Struct

from monitor.runtime.probes.process_identity import boot_id

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


def is_alive(state: ServiceState) -> bool:
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
