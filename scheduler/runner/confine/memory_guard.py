"""Edge: watch the host memory of a job near its limit: warn, ask it to save its work, end it.

With a cgroup, the kernel ends a job above its limit, and slows it down above `memory.high` before.
Without one, this guard ends it. The page cache does not count: the kernel takes it back by itself.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from scheduler.runner import files, yield_files
from scheduler.runner.process_tree import ProcessInfo
from scheduler.runner.spec import Spec
from scheduler.runner.yield_files import YieldRequestFile

# Parts of the limit. It is asked once, and again after it has fallen below the first.
WARN_PART, ASK_PART = 0.8, 0.9
# Time between checks; a job near its limit is checked more often.
LOOK_S, NEAR_S = 5.0, 1.0
GIB = 1024**3
_PAGE = os.sysconf("SC_PAGE_SIZE")
_WARNED = "\n[gpucoord: the job holds {used} of its limit of {limit} of host memory]\n"
_REASON = "It holds {used} of its limit of {limit} of host memory."
_ENDED = "\n[gpucoord: the job is ended, because it exceeds its limit of {limit} of host memory]\n"
# Version 2, then version 1 of cgroups.
_COUNTED = (frozenset({"anon", "shmem"}), frozenset({"total_rss", "total_shmem"}))

Processes = Callable[[], Iterable[ProcessInfo]]


class MemoryGuard:
    """`beat` while the job runs. folders: of its cgroup, () = none limits its memory.

    is_over: it exceeds its limit, and no cgroup ends it. has_requested_yield: the job was asked to
    save its work.
    """

    def __init__(self, spec: Spec, limit: int, log: int) -> None:
        self._spec = spec
        self._limit = limit
        self._log = log
        self._due = time.monotonic() + NEAR_S
        self._has_warned = False
        self._request: YieldRequestFile | None = None
        self.is_over = False
        self.has_requested_yield = False

    def beat(self, folders: Iterable[Path], processes: Processes) -> float:
        """Check the memory if due; returns the monotonic time of the next check."""
        if time.monotonic() >= self._due:
            used = used_bytes(folders, processes)
            self._look(used, processes, is_alone=not _limits(folders))
            near = used > self._limit // 2
            self._due = time.monotonic() + (NEAR_S if near else LOOK_S)
        return self._due

    def _look(self, used: int, processes: Processes, *, is_alone: bool) -> None:
        if used < self._limit * WARN_PART:
            self._has_warned = False
            self._withdraw()
            return
        if not self._has_warned:
            self._has_warned = True
            self._write(_WARNED, used)
        if used >= self._limit * ASK_PART and self._request is None:
            self._ask(used, processes)
        if is_alone and used > self._limit and not self.is_over:
            self.is_over = True
            self._write(_ENDED, used)

    def _ask(self, used: int, processes: Processes) -> None:
        """By the file and the signal of a yield request; the job may also free memory and stay."""
        self.has_requested_yield = True
        reason = _REASON.format(**self._sizes(used))
        self._request = YieldRequestFile(reason, time.time() + self._spec.grace_s)
        if files.read_json(Path(self._spec.yield_file)) is None:
            with suppress(OSError, KeyError):
                yield_files.notify_job(self._request, self._spec, lambda: list(processes()))

    def _withdraw(self) -> None:
        """Remove the own request, but none of the scheduler."""
        request, self._request = self._request, None
        path = Path(self._spec.yield_file)
        if request is not None and files.read_json(path) == request.for_job:
            with suppress(OSError):
                path.unlink()

    def _write(self, text: str, used: int) -> None:
        with suppress(OSError):
            os.write(self._log, text.format(**self._sizes(used)).encode())

    def _sizes(self, used: int) -> dict[str, str]:
        return {"used": f"{used / GIB:.3g} GiB", "limit": f"{self._limit / GIB:.3g} GiB"}


def used_bytes(folders: Iterable[Path], processes: Processes) -> int:
    """Memory that the kernel cannot take back, of the cgroup or else of the processes."""
    for folder in folders:
        with suppress(OSError, ValueError):
            lines = (folder / "memory.stat").read_text().splitlines()
            values = {name: int(value) for name, value in map(str.split, lines)}
            for names in _COUNTED:
                if names & values.keys():
                    return sum(values.get(name, 0) for name in names)
    return sum(_private_bytes(process.pid) for process in processes())


def _private_bytes(pid: int) -> int:
    with suppress(OSError, ValueError, IndexError):
        words = Path(f"/proc/{pid}/statm").read_text().split()
        return (int(words[1]) - int(words[2])) * _PAGE
    return 0


def _limits(folders: Iterable[Path]) -> bool:
    """Whether a cgroup limits the memory."""
    names = ("memory.max", "memory.limit_in_bytes")
    return any((folder / name).exists() for folder in folders for name in names)
