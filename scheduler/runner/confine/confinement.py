"""Edge: the isolation of a job by its runner: GPU locks, a cgroup, a share of time, its log.

Features that this machine lacks are left out, as `gpucoord check` shows. Only a lock held by
another program prevents the job from starting.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from scheduler.runner import files, process_tree
from scheduler.runner.confine import cgroups, locks
from scheduler.runner.confine.cgroups import Cgroup
from scheduler.runner.confine.locks import HeldLocks, LockRefused
from scheduler.runner.files import YieldRequestFile
from scheduler.runner.process_tree import ProcessInfo
from scheduler.runner.spec import Bounds, Spec

# Edge: limit the size of a job's log; beyond the limit only the end is kept.
#
# The job writes directly into the file. Data beyond the limit is cut off regularly. Its last part
# is appended when the job has ended, because it often contains the reason.


# Time between checks; a log near its limit is checked more often.
LOOK_S = 2.0
NEAR_S = 0.5
# Less than a page shows of a log, so that the note about the gap is visible.
TAIL_BYTES = 48 * 1024
_REACHED = "\n[gpucoord: the log has reached its limit of {}; what follows is left out]\n"
_LEFT_OUT = "\n[gpucoord: {} were left out here; this is the end of the log]\n"


class LogLimit:
    """`beat` while the job runs, `finish` when it is over."""

    def __init__(self, log: int, limit: int) -> None:
        self._log = log
        self._limit = limit
        self._due = time.monotonic() + LOOK_S
        # The length that the log is cut to; None = it has not reached its limit.
        self._cut: int | None = None
        self._left_out = 0
        self._tail = b""

    def beat(self) -> float:
        """Check the size if due; returns the monotonic time of the next check."""
        if time.monotonic() >= self._due:
            near = self._look() > self._limit // 2
            self._due = time.monotonic() + (NEAR_S if near else LOOK_S)
        return self._due

    def finish(self) -> None:
        """Append the last part. Call it when no process writes any more."""
        self._look()
        if self._left_out:
            left_out = max(0, self._left_out - len(self._tail))
            with suppress(OSError):
                _write(self._log, _LEFT_OUT.format(_size(left_out)).encode() + self._tail)

    def _look(self) -> int:
        size = os.fstat(self._log).st_size
        with suppress(OSError):
            if self._cut is None and size > self._limit:
                self._drop(self._limit, size)
                _write(self._log, _REACHED.format(_size(self._limit)).encode())
                self._cut = os.fstat(self._log).st_size
            elif self._cut is not None and size > self._cut:
                self._drop(self._cut, size)
        return size

    def _drop(self, keep: int, size: int) -> None:
        start = max(keep, size - TAIL_BYTES)
        self._tail = (self._tail + os.pread(self._log, size - start, start))[-TAIL_BYTES:]
        self._left_out += size - keep
        os.ftruncate(self._log, keep)


def _write(log: int, text: bytes) -> None:
    """Append all of it; the log is open for appending."""
    while text:
        text = text[os.write(log, text) :]


def _size(value: int) -> str:
    for unit, step in (("GiB", 1024**3), ("MiB", 1024**2), ("KiB", 1024)):
        if value >= step:
            return f"{value / step:.4g} {unit}"
    return f"{value} bytes"


ProcessList = Callable[[], list[process_tree.ProcessInfo]]


class Confinement:
    """In order: `lock`, `limit` the log, `make_cgroup`, `take_in` the held process, `beat` while it
    runs, `leave`, `tidy`."""

    def __init__(self, spec: Spec) -> None:
        bounds = Bounds.from_json(spec.bounds)
        self._bounds = bounds
        self._name = cgroup_name(bounds, spec)
        self._held = HeldLocks()
        self._cgroup: Cgroup | None = None
        self._duty = DutyCycle(bounds.share_pct, bounds.period_s)
        self._log: LogLimit | None = None
        self._spec = spec
        self._memory: MemoryGuard | None = None
        # The job's processes, as far as this process knows them.
        self.processes: ProcessList = partial(process_tree.descendants, os.getpid())

    def lock(self) -> str | None:
        """Lock the GPUs' lock files; returns the reason if another program holds one."""
        if not self._bounds.lock_folder or not self._bounds.gpus:
            return None
        try:
            taken = locks.lock_gpus(
                Path(self._bounds.lock_folder),
                self._bounds.gpus,
                alone=self._bounds.alone,
                instance=self._bounds.instance,
            )
        except OSError as error:
            return locks.describe_error(error)
        if isinstance(taken, LockRefused):
            return locks.describe_refusal(taken)
        self._held = taken
        return None

    def limit(self, log: int) -> None:
        if self._bounds.log_bytes:
            self._log = LogLimit(log, self._bounds.log_bytes)
        if self._bounds.memory_bytes or self._bounds.process_memory_bytes:
            self._memory = MemoryGuard(self._spec, self._bounds, log)

    def make_cgroup(self) -> tuple[Path, ...]:
        """The folders of the job's own cgroup, with its limits set, for it to be forked into."""
        if self._bounds.cgroup:
            with suppress(OSError):
                cgroup = Cgroup.under(self._bounds.cgroup, self._name)
                cgroup.make()
                self._bound(cgroup)
        return self._cgroup.folders if self._cgroup else ()

    def take_in(self, pid: int) -> None:
        """See where the job's first process is, while it waits; or have systemd take it in."""
        if self._bounds.scope:
            with suppress(OSError, subprocess.SubprocessError):
                self._bound(Cgroup((cgroups.enter_scope(self._bounds.scope, self._name, pid),)))
        elif self._cgroup is not None:
            self._cgroup = self._cgroup.holding(pid)

    def _bound(self, cgroup: Cgroup) -> None:
        self._cgroup = cgroup
        cgroup.limit(
            cpus=self._bounds.cpus,
            memory_bytes=self._bounds.memory_bytes,
            pids=self._bounds.pids,
        )
        cgroups.hide(cgroup, [(a, b) for a, b in self._bounds.hidden])

    def beat(self) -> float | None:
        """Apply the share and the limits; returns the monotonic time of the next call."""
        dues = (
            self._log.beat() if self._log else None,
            self._watch_memory(),
            self._take_turns(),
        )
        return min((due for due in dues if due is not None), default=None)

    def _watch_memory(self) -> float | None:
        if self._memory is None:
            return None
        folders = self._cgroup.folders if self._cgroup else ()
        return self._memory.beat(folders, self.processes)

    @property
    def is_over_memory(self) -> bool:
        """Whether the job or a process exceeds its memory limit, and no cgroup ends it."""
        return self._memory is not None and self._memory.is_over

    @property
    def is_short_of_memory(self) -> bool:
        """Whether it was asked to save its work because of its memory."""
        return self._memory is not None and self._memory.has_requested_yield

    @property
    def peak_memory_bytes(self) -> int:
        """The most host memory of all its processes together, at checks some seconds apart."""
        return 0 if self._memory is None else self._memory.peak_bytes

    def _take_turns(self) -> float | None:
        """Let the job run or pause, as its share says."""
        if not self._duty.caps:
            return None
        pauses, until = self._duty.at(time.monotonic())
        if pauses is not self._duty.pausing:
            self._duty.pausing = pauses
            self._pause(on=pauses)
        return until

    def let_go(self) -> None:
        """End the pauses, because a paused job does not receive signals."""
        self._duty.caps = False
        if self._duty.pausing:
            self._duty.pausing = False
            self._pause(on=False)

    @property
    def lock_files(self) -> list[int]:
        """The open files that hold its locks."""
        return self._held.descriptors

    def take_over(self, pid: int, lock_files: list[int]) -> None:
        """Go on for a runner that has died. It may have paused the job."""
        self._held = HeldLocks(lock_files)
        folders = Cgroup.under(self._bounds.cgroup, self._name).folders
        if existing := tuple(folder for folder in folders if folder.is_dir()):
            self._cgroup = Cgroup(existing)
        self._duty.pausing = self._duty.caps
        if self._bounds.scope:
            with suppress(OSError):
                unit = cgroups.unit_name(self._name)
                self._cgroup = Cgroup((cgroups.folder_of(pid, unit, timeout_s=0.0),))

    def cap_again(self) -> None:
        """It need not end after all."""
        self._duty = DutyCycle(self._bounds.share_pct, self._bounds.period_s)

    def kill(self) -> None:
        """SIGKILL for all in the cgroup, whatever they call themselves by now."""
        if self._cgroup is not None:
            self._cgroup.kill()

    @property
    def ran_out_of_memory(self) -> bool:
        return self._cgroup is not None and self._cgroup.ran_out_of_memory()

    def leave(self) -> None:
        """The job is over: others may have its GPUs."""
        self.kill()
        # Its guardian has them open, too.
        self._held.unlock()
        if self._log is not None:
            self._log.finish()

    def tidy(self) -> None:
        """Clean up after the result was reported, so that nothing waits for it."""
        if self._cgroup is not None:
            self._cgroup.remove()

    def _pause(self, *, on: bool) -> None:
        """Pause or continue the job: by the freezer, or without one by SIGSTOP and SIGCONT."""
        if self._cgroup is not None and self._cgroup.can_freeze and self._cgroup.freeze(on=on):
            return
        if on:
            process_tree.signal_all(self.processes(), signal.SIGSTOP)
        else:
            process_tree.signal_all(self.processes(), signal.SIGCONT)


def end_remaining(spec: Spec) -> None:
    """End all remaining processes in the cgroup of a job whose runner was killed."""
    bounds = Bounds.from_json(spec.bounds)
    cgroup = Cgroup.under(bounds.cgroup, cgroup_name(bounds, spec))
    cgroup.kill()
    cgroup.remove()


def cgroup_name(bounds: Bounds, spec: Spec) -> str:
    """Several instances of gpucoord may have their jobs in one folder."""
    return f"{bounds.instance or 0}-job-{spec.job_id}-{spec.attempt}"


class DutyCycle:
    """A duty cycle: the job runs in the first part of each period. caps: False = no pauses.

    The GPU still works on what was submitted before a pause, so a period must not be much shorter
    than a step of the job.
    """

    def __init__(self, share_pct: int | None, period_s: float) -> None:
        self._share = (share_pct or 100) / 100
        self._period_s = max(0.05, period_s)
        self._began: float | None = None
        self.caps = share_pct is not None and 0 < share_pct < 100
        self.pausing = False

    def at(self, now: float) -> tuple[bool, float]:
        """(whether it pauses at this instant, until when)."""
        if self._began is None:
            self._began = now
        turn, into = divmod(now - self._began, self._period_s)
        starts = self._began + turn * self._period_s
        runs_for = self._share * self._period_s
        if into < runs_for:
            return False, starts + runs_for
        return True, starts + self._period_s


# Watch the host memory of a job near a limit: warn, ask it to save its work, end it.
#
# There are two limits: of the job as a whole, and of each of its processes. With a cgroup, the
# kernel ends a job above its limit, and slows it down above `memory.high` before. Without one, and
# for a process above its limit, this guard ends the job. The page cache does not count: the kernel
# takes it back by itself.


# Parts of a limit. It is asked once, and again after it has fallen below the first.
WARN_PART, ASK_PART = 0.8, 0.9
# Time between checks; a job near its limit is checked more often.
MEMORY_LOOK_S, MEMORY_NEAR_S = 5.0, 1.0
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
        self._due = time.monotonic() + MEMORY_NEAR_S
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
            self._due = time.monotonic() + (MEMORY_NEAR_S if near else MEMORY_LOOK_S)
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
                files.notify_job(self._request, self._spec, lambda: list(processes()))

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
