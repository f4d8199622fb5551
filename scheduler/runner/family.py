"""Edge: which processes belong to a job, and signals that can't hit another process."""

from __future__ import annotations

import contextlib
import os
import signal
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Relative:
    """A process with what tells it apart (start ticks) and where it belongs."""

    pid: int
    parent: int
    session: int
    start_ticks: int


def descendants(root: int) -> list[Relative]:
    """Children of `root` and theirs, down to the last."""
    children: dict[int, list[Relative]] = defaultdict(list)
    for process in _all():
        children[process.parent].append(process)
    found: list[Relative] = []
    todo = [root]
    while todo:
        born = children.pop(todo.pop(), [])
        found += born
        todo += [process.pid for process in born]
    return found


def orphans(leader: int, start_ticks: int, nonce: str) -> list[Relative]:
    """What is left of a job whose runner is gone.

    By the nonce in their environment, and by session and descent while the first process
    lives (later its number may mean someone else).
    """
    everyone = list(_all())
    found = {p.pid: p for p in everyone if _carries(p.pid, nonce)}
    if any(p.pid == leader and p.start_ticks == start_ticks for p in everyone):
        found |= {p.pid: p for p in everyone if leader in (p.pid, p.session)}
        found |= {p.pid: p for p in descendants(leader)}
    return [p for p in found.values() if p.pid != os.getpid()]


def signal_all(processes: Iterable[Relative], number: int) -> None:
    for process in processes:
        signal_one(process.pid, process.start_ticks, number)


def signal_one(pid: int, start_ticks: int, number: int) -> bool:
    """Signal exactly that process; False when it is gone. A reused pid is never hit."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        # The handle stays with the process; so what is read after it was opened decides.
        found = _read(pid)
        if found is None or found.start_ticks != start_ticks:
            return False
        signal.pidfd_send_signal(handle, number)
    except (ProcessLookupError, PermissionError):
        return False
    finally:
        os.close(handle)
    return True


def listens(pid: int, number: int) -> bool:
    """Whether a process does something of its own at this signal, so that it does not just die."""
    mask = 1 << (number - 1)
    with contextlib.suppress(OSError), open(f"/proc/{pid}/status", "rb") as file:  # noqa: PTH123
        for line in file:
            name, _, value = line.partition(b":")
            if name in (b"SigCgt", b"SigBlk") and int(value, 16) & mask:
                return True
    return False


def start_ticks_of(pid: int) -> int | None:
    found = _read(pid)
    return found.start_ticks if found else None


def relative_of(pid: int) -> Relative | None:
    return _read(pid)


def _all() -> Iterator[Relative]:
    for name in os.listdir("/proc"):  # noqa: PTH208
        if name.isdigit():
            found = _read(int(name))
            if found:
                yield found


def _read(pid: int) -> Relative | None:
    """None when there is no such process, or only a zombie is left of it."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    if not fields or fields[0] in (b"Z", b"X"):
        return None
    return Relative(pid, int(fields[1]), int(fields[3]), int(fields[19]))


def _carries(pid: int, nonce: str) -> bool:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/environ", "rb") as file:  # noqa: PTH123
        return f"GPUCOORD_NONCE={nonce}".encode() in file.read().split(b"\0")
    return False
