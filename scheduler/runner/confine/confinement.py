"""Edge: the isolation of a job by its runner: GPU locks, a cgroup, a share of time, its log.

Features that this machine lacks are left out, as `gpucoord check` shows. Only a lock held by
another program prevents the job from starting.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from scheduler.runner import process_tree
from scheduler.runner.confine import cgroups, locks
from scheduler.runner.confine.cgroups import Cgroup
from scheduler.runner.confine.locks import HeldLocks, LockRefused
from scheduler.runner.confine.memory_guard import MemoryGuard
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


Processes = Callable[[], list[process_tree.ProcessInfo]]


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
        self.processes: Processes = partial(process_tree.descendants, os.getpid())

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
                self._bound(Cgroup((cgroups.enter(self._bounds.scope, self._name, pid),)))
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
