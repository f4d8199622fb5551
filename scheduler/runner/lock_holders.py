"""Edge: who holds a lock file, from /proc/locks. Looking takes no lock, so it disturbs nobody."""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from scheduler.runner import family

RUNNER = "gpucoord-runner"


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A process that holds a lock file. `alone`: nobody else may. None = can't be told."""

    pid: int
    start_ticks: int | None = None
    user: str | None = None
    program: str | None = None
    alone: bool = True

    @property
    def name(self) -> str:
        """For people: bob/train.py (pid 88)."""
        if self.program == RUNNER:
            whose = f" of {self.user}" if self.user else ""
            return f"a gpucoord job{whose} (runner {self.pid})"
        who = "/".join(word for word in (self.user, self.program) if word)
        return f"{who or 'someone'} (pid {self.pid})"


def holders(files: Iterable[Path]) -> dict[Path, tuple[Holder, ...]]:
    """Who holds each of these files, as far as it can be seen; () = nobody that is seen."""
    wanted: dict[int, list[tuple[Path, os.stat_result]]] = {}
    found: dict[Path, list[Holder]] = {}
    for file in files:
        found[file] = []
        with suppress(OSError):
            seen = file.stat(follow_symlinks=False)
            wanted.setdefault(seen.st_ino, []).append((file, seen))
    if wanted:
        for inode, device, pid, alone in _flocks():
            for file, seen in wanted.get(inode, ()):
                if _is_same(device, seen, pid):
                    found[file].append(_holder(_living(pid, seen), alone=alone))
    return {file: tuple(who) for file, who in found.items()}


def _flocks() -> Iterable[tuple[int, tuple[int, int], int, bool]]:
    """(inode, device, pid, alone) of every flock that is held; those who wait are left out."""
    try:
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        words = line.split()
        if len(words) < 6 or words[1] != "FLOCK":
            continue
        major, minor, inode = words[5].split(":")
        yield int(inode), (int(major, 16), int(minor, 16)), int(words[4]), words[3] == "WRITE"


def _is_same(device: tuple[int, int], seen: os.stat_result, pid: int) -> bool:
    """On some file systems the device's number there is another; then its open files decide."""
    if device == (os.major(seen.st_dev), os.minor(seen.st_dev)):
        return True
    return _has_open(pid, seen)


def _living(pid: int, seen: os.stat_result) -> int:
    """The process that locked it; once that has ended, one that has the file still open.

    A shell's `flock 9` ends at once, and the shell has the lock.
    """
    if family.start_ticks_of(pid) is not None:
        return pid
    others = (int(name) for name in os.listdir("/proc") if name.isdigit())  # noqa: PTH208
    return next((other for other in others if _has_open(other, seen)), pid)


def _has_open(pid: int, seen: os.stat_result) -> bool:
    folder = f"/proc/{pid}/fd"
    with suppress(OSError):
        for name in os.listdir(folder):  # noqa: PTH208
            with suppress(OSError):
                if os.path.samestat(Path(folder, name).stat(), seen):
                    return True
    return False


def _holder(pid: int, *, alone: bool) -> Holder:
    program = _program(pid)
    return Holder(
        pid=pid,
        start_ticks=family.start_ticks_of(pid),
        user=_user(_job(pid) if program == RUNNER else pid),
        program=program,
        alone=alone,
    )


def _job(runner: int) -> int:
    """The job's first process, which runs as its owner; 0 while there is none."""
    with suppress(OSError, IndexError):
        return int(Path(f"/proc/{runner}/task/{runner}/children").read_text().split()[0])
    return 0


def _user(pid: int) -> str | None:
    with suppress(OSError, KeyError):
        return pwd.getpwuid(Path(f"/proc/{pid}").stat().st_uid).pw_name
    return None


def _program(pid: int) -> str | None:
    with suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip() or None
    return None
