"""Edge: watch the host memory of a job near a limit: warn, ask it to save its work, end it.

There are two limits: of the job as a whole, and of each of its processes. With a cgroup, the kernel
ends a job above its limit, and slows it down above `memory.high` before. Without one, and for a
process above its limit, this guard ends the job. The page cache does not count: the kernel takes it
back by itself.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from scheduler.runner import files, yield_files
from scheduler.runner.process_tree import ProcessInfo
from scheduler.runner.spec import Bounds, Spec
from scheduler.runner.yield_files import YieldRequestFile

# Parts of a limit. It is asked once, and again after it has fallen below the first.
WARN_PART, ASK_PART = 0.8, 0.9
# Time between checks; a job near its limit is checked more often.
LOOK_S, NEAR_S = 5.0, 1.0
GIB = 1024**3
_PAGE = os.sysconf("SC_PAGE_SIZE")
_WARNED = "\n[gpucoord: {holder} holds {used} of its limit of {limit} of host memory]\n"
_REASON = "{holder} holds {used} of its limit of {limit} of host memory."
_ENDED = (
    "\n[gpucoord: the job is ended, because {holder} exceeds its limit of {limit} of host memory]\n"
)
# Names in memory.stat of version 2, then of version 1. Only the first of each tells the versions
# apart: version 1 has a "shmem" too, without the cgroups below.
_COUNTED = (("anon", "shmem"), ("total_rss", "total_shmem"))

Processes = Callable[[], Iterable[ProcessInfo]]


@dataclass(frozen=True, slots=True)
class Use:
    """Memory beside its limit. pid: of the process; None = of the job. ends: the guard ends it."""

    used: int
    limit: int
    pid: int | None
    ends: bool

    @property
    def part(self) -> float:
        return self.used / self.limit

    def text(self, template: str) -> str:
        return template.format(
            holder="the job" if self.pid is None else f"process {self.pid}",
            used=f"{self.used / GIB:.3g} GiB",
            limit=f"{self.limit / GIB:.3g} GiB",
        )


class MemoryGuard:
    """`beat` while the job runs. folders: of its cgroup, () = none limits its memory.

    is_over: it exceeds a limit, and no cgroup ends it. has_requested_yield: the job was asked to
    save its work. peak_bytes: the most that the job as a whole held at a check.
    """

    def __init__(self, spec: Spec, bounds: Bounds, log: int) -> None:
        self._spec = spec
        self._job_limit = bounds.memory_bytes
        self._process_limit = bounds.process_memory_bytes
        self._log = log
        self._due = time.monotonic() + NEAR_S
        self._has_warned = False
        self._request: YieldRequestFile | None = None
        self.is_over = False
        self.has_requested_yield = False
        self.peak_bytes = 0

    def beat(self, folders: Iterable[Path], processes: Processes) -> float:
        """Check the memory if due; returns the monotonic time of the next check."""
        if time.monotonic() >= self._due:
            uses = list(self._uses(folders, processes))
            worst = max(uses, key=lambda use: use.part, default=None)
            if worst is not None:
                self._look(worst, processes)
            for use in uses:
                self._end(use)
            near = worst is not None and worst.part > 0.5
            self._due = time.monotonic() + (NEAR_S if near else LOOK_S)
        return self._due

    def _uses(self, folders: Iterable[Path], processes: Processes) -> Iterator[Use]:
        total = used_bytes(folders, processes)
        self.peak_bytes = max(self.peak_bytes, total)
        if self._job_limit:
            yield Use(total, self._job_limit, None, ends=not _limits(folders))
        # No process holds more than all of them together.
        if self._process_limit and total > self._process_limit // 2:
            sizes = {process.pid: _private_bytes(process.pid) for process in processes()}
            if sizes:
                largest = max(sizes, key=lambda pid: sizes[pid])
                yield Use(sizes[largest], self._process_limit, largest, ends=True)

    def _look(self, use: Use, processes: Processes) -> None:
        if use.part < WARN_PART:
            self._has_warned = False
            self._withdraw()
            return
        if not self._has_warned:
            self._has_warned = True
            self._write(use.text(_WARNED))
        if use.part >= ASK_PART and self._request is None:
            self._ask(use, processes)

    def _end(self, use: Use) -> None:
        if use.ends and use.used > use.limit and not self.is_over:
            self.is_over = True
            self._write(use.text(_ENDED))

    def _ask(self, use: Use, processes: Processes) -> None:
        """By the file and the signal of a yield request; the job may also free memory and stay."""
        self.has_requested_yield = True
        reason = use.text(_REASON)
        reason = reason[:1].upper() + reason[1:]
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

    def _write(self, text: str) -> None:
        with suppress(OSError):
            os.write(self._log, text.encode())


def used_bytes(folders: Iterable[Path], processes: Processes) -> int:
    """Memory that the kernel cannot take back, of the cgroup or else of the processes."""
    for folder in folders:
        with suppress(OSError, ValueError):
            lines = (folder / "memory.stat").read_text().splitlines()
            values = {name: int(value) for name, value in map(str.split, lines)}
            for names in _COUNTED:
                if names[0] in values:
                    return sum(values.get(name, 0) for name in names)
    return sum(_private_bytes(process.pid) for process in processes())


def _private_bytes(pid: int) -> int:
    with suppress(OSError, ValueError, IndexError):
        return private_pages(Path(f"/proc/{pid}/statm").read_text()) * _PAGE
    return 0


def private_pages(statm: str) -> int:
    """Resident pages without shared ones, by the text of /proc/PID/statm."""
    _, resident, shared, *_ = map(int, statm.split())
    return resident - shared


def _limits(folders: Iterable[Path]) -> bool:
    """Whether a cgroup limits the memory."""
    names = ("memory.max", "memory.limit_in_bytes")
    return any((folder / name).exists() for folder in folders for name in names)
