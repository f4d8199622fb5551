"""Edge: the processes of a job, and signals that cannot reach a process with a reused pid."""

from __future__ import annotations

import contextlib
import os
import signal
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

# The name of the process above a runner (guardian.py).
GUARDIAN = "gpucoord-guard"


@dataclass(frozen=True, slots=True)
class ProcessInfo:
    """A process, identified by pid and start ticks, with its parent and session."""

    pid: int
    parent: int
    group: int
    session: int
    start_ticks: int


def descendants(root: int) -> list[ProcessInfo]:
    """All descendants of `root`."""
    children: dict[int, list[ProcessInfo]] = defaultdict(list)
    for process in _all():
        children[process.parent].append(process)
    result: list[ProcessInfo] = []
    todo = [root]
    while todo:
        born = children.pop(todo.pop(), [])
        result += born
        todo += [process.pid for process in born]
    return result


def orphans(leader: int, start_ticks: int, nonce: str) -> list[ProcessInfo]:
    """Remaining processes of a job whose runner has ended.

    They are found by the nonce in their environment, and by session and descent while the first
    process lives; later its pid may be reused.
    """
    processes = list(_all())
    carriers = {p.pid: p for p in processes if _carries(p.pid, nonce)}
    if any(p.pid == leader and p.start_ticks == start_ticks for p in processes):
        carriers |= {p.pid: p for p in processes if leader in (p.pid, p.session)}
        carriers |= {p.pid: p for p in descendants(leader)}
    return [p for p in carriers.values() if p.pid != os.getpid()]


def signal_all(processes: Iterable[ProcessInfo], number: int) -> None:
    for process in processes:
        signal_one(process.pid, process.start_ticks, number)


def signal_one(pid: int, start_ticks: int, number: int) -> bool:
    """Signal exactly that process; False when it is gone. A reused pid is never hit."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        # The descriptor refers to one process, so the identity is compared after it was opened.
        process = _read(pid)
        if process is None or process.start_ticks != start_ticks:
            return False
        signal.pidfd_send_signal(handle, number)
    except (ProcessLookupError, PermissionError):
        return False
    finally:
        os.close(handle)
    return True


def handles_signal(pid: int, number: int) -> bool:
    """Whether a process does something of its own at this signal, so that it does not just die."""
    mask = 1 << (number - 1)
    with contextlib.suppress(OSError), open(f"/proc/{pid}/status", "rb") as file:  # noqa: PTH123
        for line in file:
            name, _, value = line.partition(b":")
            if name in (b"SigCgt", b"SigBlk") and int(value, 16) & mask:
                return True
    return False


def start_ticks_of(pid: int) -> int | None:
    process = _read(pid)
    return process.start_ticks if process else None


def process_info(pid: int) -> ProcessInfo | None:
    return _read(pid)


def _all() -> Iterator[ProcessInfo]:
    for name in os.listdir("/proc"):  # noqa: PTH208
        if name.isdigit():
            process = _read(int(name))
            if process:
                yield process


def _read(pid: int) -> ProcessInfo | None:
    """None: there is no such process, or it is a zombie."""
    try:
        # Unbuffered: this runs for each job and process.
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:  # noqa: PTH123
            return parsed(pid, file.read())
    except OSError:
        return None


def parsed(pid: int, stat: bytes) -> ProcessInfo | None:
    """From /proc/PID/stat, where the name may hold spaces and parentheses. None: as of `_read`."""
    fields = stat.rpartition(b")")[2].split()
    if not fields or fields[0] in (b"Z", b"X"):
        return None
    return ProcessInfo(pid, int(fields[1]), int(fields[2]), int(fields[3]), int(fields[19]))


def _carries(pid: int, nonce: str) -> bool:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/environ", "rb") as file:  # noqa: PTH123
        return f"GPUCOORD_NONCE={nonce}".encode() in file.read().split(b"\0")
    return False
