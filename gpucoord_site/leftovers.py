"""Ends what a supervisor left behind that was killed itself; jobs have sessions of their own."""

from __future__ import annotations

import time
from pathlib import Path

from gpucoord_site import kernel
from gpucoord_site.children import kill_session
from monitor import service_state
from monitor.identity import boot_id, start_ticks
from monitor.service_state import ChildState, ServiceState

PATIENCE_S = 3.0


def end_leftovers(folder: Path) -> int:
    """Kill the sessions that the last supervisor recorded, if they are surely its own."""
    last = service_state.read(folder)
    if last is None or last.boot_id != boot_id():
        return 0
    sessions = [c.pid for c in last.children if c.pid is not None and _is_ours(c, last)]
    for leader in sessions:
        kill_session(leader)
    _wait_until_gone(sessions)
    return len(sessions)


def _is_ours(child: ChildState, last: ServiceState) -> bool:
    """Whether the session holds processes, and they are copies of that very supervisor.

    Its number can't have been given to others while a member lives; a leader that started at
    another moment, or another command line, says that it was.
    """
    leader = child.pid or 0
    found = list(kernel.members(leader))
    if start_ticks(leader) not in (None, child.start_ticks):
        return False
    return bool(found) and all(kernel.command_line(pid) == last.command for pid in found)


def _wait_until_gone(sessions: list[int]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while any(any(kernel.members(s)) for s in sessions) and time.monotonic() < deadline:
        time.sleep(0.05)
