"""Edge: fork a process that is in its cgroups before it does anything, and without a wait.

A process that is moved by another one waits for the kernel (10 ms and more, for each hierarchy).
Who is born into a version 2 cgroup, or steps by itself into one of version 1, does not.
"""

from __future__ import annotations

import ctypes
import os
import signal
import struct
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

# The number of clone3 on every kind of machine, and its flag for a cgroup.
CLONE3, CLONE_INTO_CGROUP = 435, 0x200000000
# One thread steps in alone, which is all that a process has just after a fork.
V1_DOOR, V2_DOOR = "tasks", "cgroup.procs"
MYSELF = b"0"


def fork_into(folders: Sequence[Path]) -> int:
    """Like os.fork(). What can't be entered is left out."""
    doors = [_door(folder) for folder in folders]
    birthplace = None
    if _is_alone():
        birthplace = next((d for d in doors if d.name == V2_DOOR and d.exists()), None)
    pid = None if birthplace is None else _born_in(birthplace.parent)
    if pid is None:
        birthplace, pid = None, os.fork()
    if pid == 0:
        for door in doors:
            if door != birthplace:
                _step_in(door)
    return pid


def _is_alone() -> bool:
    """Beside other threads only Python's own fork leaves the interpreter's lock in order."""
    return len(list(Path("/proc/self/task").iterdir())) == 1


def _door(folder: Path) -> Path:
    v1 = folder / V1_DOOR
    return v1 if v1.exists() else folder / V2_DOOR


def _step_in(door: Path) -> None:
    with suppress(OSError):
        descriptor = os.open(door, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(descriptor, MYSELF)
        finally:
            os.close(descriptor)


def _born_in(folder: Path) -> int | None:
    """Fork; None where the kernel, or what guards it, does not know how, or it is no cgroup."""
    try:
        cgroup = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None
    wish = struct.pack("=11Q", CLONE_INTO_CGROUP, 0, 0, 0, signal.SIGCHLD, 0, 0, 0, 0, 0, cgroup)
    # Holding the interpreter's lock: nothing of Python runs between the fork and its return.
    pid = ctypes.PyDLL(None).syscall(CLONE3, ctypes.create_string_buffer(wish), len(wish))
    os.close(cgroup)
    return pid if pid >= 0 else None
