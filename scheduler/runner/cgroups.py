"""Edge: a control group per job: limits, a freezer and a kill that nothing escapes.

One class for version 2, version 1 and both side by side: a job has a folder in each hierarchy that
is given, and each wish is written wherever a file for it is. Standard library only.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from scheduler.runner import family

PERIOD_US = 100_000
GONE_AFTER_S = 1.0


@dataclass(frozen=True, slots=True)
class Cgroup:
    """The folders of one job; `make` them first. A wish that no folder knows is left out."""

    folders: tuple[Path, ...]

    @classmethod
    def under(cls, parents: Iterable[str], name: str) -> Cgroup:
        return cls(tuple(Path(parent) / name for parent in parents))

    def make(self) -> None:
        """Make the folders. Who may not, has no cgroup here: OSError."""
        for folder in self.folders:
            folder.mkdir(mode=0o755, parents=True, exist_ok=True)

    def limit(
        self,
        *,
        cpus: float | None = None,
        memory_bytes: int | None = None,
        pids: int | None = None,
    ) -> None:
        """Set what all processes of the job get together."""
        if cpus is not None:
            quota = max(1000, round(cpus * PERIOD_US))
            self._write("cpu.max", f"{quota} {PERIOD_US}")
            self._write("cpu.cfs_period_us", str(PERIOD_US))
            self._write("cpu.cfs_quota_us", str(quota))
        if memory_bytes is not None:
            self._write("memory.oom.group", "1")
            self._write("memory.max", str(memory_bytes))
            self._write("memory.limit_in_bytes", str(memory_bytes))
        if pids is not None:
            self._write("pids.max", str(pids))

    def add(self, pid: int) -> None:
        """Put a process, and all that it will start, in."""
        for folder in self.folders:
            (folder / "cgroup.procs").write_text(str(pid))

    def pids(self) -> set[int]:
        return set().union(*map(_pids, self.folders))

    def holding(self, pid: int) -> Cgroup | None:
        """What of it this process is in; None = it could not go into any of it."""
        found = tuple(folder for folder in self.folders if pid in _pids(folder))
        return Cgroup(found) if found else None

    def ran_out_of_memory(self) -> bool:
        """Whether the kernel has killed one of its processes for memory."""
        for folder in self.folders:
            for name in ("memory.events", "memory.oom_control"):
                with suppress(OSError):
                    for line in (folder / name).read_text().splitlines():
                        if line.startswith("oom_kill ") and line != "oom_kill 0":
                            return True
        return False

    @property
    def can_freeze(self) -> bool:
        names = ("cgroup.freeze", "freezer.state")
        return any((folder / name).exists() for folder in self.folders for name in names)

    def freeze(self, *, on: bool) -> bool:
        """Stop or go on; False when this can't be done."""
        one = self._write("cgroup.freeze", "1" if on else "0")
        return one or self._write("freezer.state", "FROZEN" if on else "THAWED")

    def deny(self, devices: Iterable[tuple[int, int]]) -> bool:
        """Version 1: keep character devices closed to the job; False when this can't be done."""
        return all(self._write("devices.deny", f"c {a}:{b} rwm") for a, b in devices)

    def kill(self) -> bool:
        """SIGKILL for all, also for those born meanwhile. False when there is nothing to kill."""
        if not self.folders or not self.pids():
            return False
        if not self._write("cgroup.kill", "1"):
            self._kill_each()
        return True

    def remove(self) -> None:
        """Once nobody is in it. Whoever dies slowly gets a moment."""
        ends = time.monotonic() + GONE_AFTER_S
        left = [folder for folder in self.folders if folder.exists()]
        while left and time.monotonic() < ends:
            left = [folder for folder in left if not _removed(folder)]
            if left:
                time.sleep(0.01)

    def _kill_each(self) -> None:
        """Frozen, none can fork away from the signal; what is thawed dies of it."""
        self.freeze(on=True)
        for pid in self.pids() - {os.getpid()}:
            ticks = family.start_ticks_of(pid)
            if ticks is not None:
                family.signal_one(pid, ticks, signal.SIGKILL)
        self.freeze(on=False)

    def _write(self, name: str, text: str) -> bool:
        """Into each folder that has this file; whether one took it."""
        done = False
        for folder in self.folders:
            path = folder / name
            if path.exists():
                with suppress(OSError):
                    path.write_text(text)
                    done = True
        return done


def _pids(folder: Path) -> set[int]:
    with suppress(OSError):
        return {int(line) for line in (folder / "cgroup.procs").read_text().split()}
    return set()


def _removed(folder: Path) -> bool:
    try:
        folder.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True
