"""Edge: CPU and disk priorities of a process, thread by thread, as the kernel keeps them."""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

# ioprio_set, ioprio_get
CALLS = {"x86_64": (251, 252), "aarch64": (30, 31), "ppc64le": (273, 274)}
OF_PROCESS = 1
IDLE = 3 << 13
CAP_SYS_NICE = 23
MOST_ODD = 200


def may_restore() -> bool:
    """Whether a nice value that was raised can be lowered again: that needs a privilege."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) >> CAP_SYS_NICE & 1)
    return False


def read_priorities(pid: int) -> dict[str, object] | None:
    """Input of restore(): the first thread's values, and those of threads that differ."""
    priorities = {tid: (_nice(tid), _io(tid)) for tid in _threads(pid)}
    if pid not in priorities:
        return None
    usual = priorities[pid]
    odd = [[tid, *values] for tid, values in priorities.items() if values != usual]
    return {"nice": usual[0], "io": usual[1], "odd": odd[:MOST_ODD]}


def lower(pid: int, nice: int) -> None:
    """Each thread at most this eager for the CPU, and last at the disk."""
    for tid in _threads(pid):
        with suppress(ProcessLookupError):
            os.setpriority(os.PRIO_PROCESS, tid, max(nice, os.getpriority(os.PRIO_PROCESS, tid)))
            set_io(tid, IDLE)


def restore(pid: int, before: dict[str, object]) -> None:
    """As it was; threads that were born meanwhile like the first."""
    odd = before.get("odd")
    others = {row[0]: row[1:] for row in odd} if isinstance(odd, list) else {}
    for tid in _threads(pid):
        nice, io = others.get(tid, (before.get("nice"), before.get("io")))
        with suppress(ProcessLookupError):
            if isinstance(nice, int):
                os.setpriority(os.PRIO_PROCESS, tid, nice)
            if isinstance(io, int):
                set_io(tid, io)


def _threads(pid: int) -> Iterator[int]:
    with suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208
            yield int(name)


def _nice(tid: int) -> int | None:
    with suppress(ProcessLookupError):
        return os.getpriority(os.PRIO_PROCESS, tid)
    return None


def _io(tid: int) -> int | None:
    calls = CALLS.get(platform.machine())
    value = _syscall(calls[1], OF_PROCESS, tid) if calls else -1
    return value if value >= 0 else None


def set_io(tid: int, value: int) -> None:
    """As in ioprio_set: 0 = derived from the nice value, IDLE = only if the disk is idle."""
    if calls := CALLS.get(platform.machine()):
        _syscall(calls[0], OF_PROCESS, tid, value)


def _syscall(*arguments: int) -> int:
    return int(ctypes.CDLL(None).syscall(*(ctypes.c_long(a) for a in arguments)))
