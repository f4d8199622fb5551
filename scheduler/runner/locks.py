"""Edge: lock files by which programs that know nothing of each other keep off each other's GPUs.

    gpu.lock    the whole host; who holds it alone (flock) has all GPUs
    gpu0.lock   one GPU, by its index; held alone, or shared

Files are only ever opened to read, so anybody may lock them and nobody needs to write. Nothing is
written into them, no link is followed, and what is no plain file is refused. Beside flock, jobs of
gpucoord hold one byte (an open-file-description lock) that stands for their instance: so several
instances never share a GPU, while shared jobs of one instance do. Standard library only.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import struct
import zlib
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from scheduler.runner.lock_holders import Holder, holders

HOST_FILE = "gpu.lock"
# Readable by all: that is enough to lock it.
MODE = 0o644
OPEN = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
_FLOCK = "hhqqi"
_LAST_BYTE = 2**30


class UnsafeLockFile(OSError):
    """What lies where a lock file should be is none, or may be swapped by others."""


@dataclass(slots=True)
class Held:
    """Locks that last until `release`, or until the last process that has them open ends."""

    descriptors: list[int] = field(default_factory=list)

    def release(self) -> None:
        while self.descriptors:
            os.close(self.descriptors.pop())


@dataclass(frozen=True, slots=True)
class Refused:
    """Somebody else holds `file`; `by`: who, as far as can be seen."""

    file: Path
    by: tuple[Holder, ...]


def gpu_file(folder: Path, index: int) -> Path:
    return folder / f"gpu{index}.lock"


def instance_number(data: str) -> int:
    """What stands for the gpucoord instance whose data lies there; never 0."""
    return zlib.crc32(data.encode()) % (_LAST_BYTE - 1) + 1


def take(
    folder: Path,
    indices: Iterable[int],
    *,
    alone: bool,
    instance: int | None = None,
    wait: bool = False,
) -> Held | Refused:
    """Lock these GPUs, all or none. `alone` = nobody beside us; else shared with who shares too.

    `instance`: also keep off every other gpucoord instance, whatever it shares. `wait`: as long as
    it takes (in the order of the indices, so that two who wait never wait for each other).
    """
    held = Held()
    files = [(folder / HOST_FILE, False)]
    files += [(gpu_file(folder, index), alone) for index in sorted(set(indices))]
    try:
        for number, (file, exclusive) in enumerate(files):
            descriptor = _lock(file, exclusive=exclusive, wait=wait)
            if descriptor is None:
                held.release()
                return Refused(file, holders([file])[file])
            held.descriptors.append(descriptor)
            if number and instance is not None and not _mark(descriptor, instance):
                held.release()
                return Refused(file, holders([file])[file])
    except BaseException:
        held.release()
        raise
    return held


def take_host(folder: Path, *, wait: bool = False) -> Held | Refused:
    """Lock the whole host, alone."""
    file = folder / HOST_FILE
    descriptor = _lock(file, exclusive=True, wait=wait)
    if descriptor is None:
        return Refused(file, holders([file])[file])
    return Held([descriptor])


def open_file(path: Path) -> int:
    """A descriptor of the lock file, which is made if it is not there."""
    check_folder(path.parent)
    descriptor = _open(path)
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
        os.close(descriptor)
        raise UnsafeLockFile(errno.EINVAL, "it is no plain file", str(path))
    return descriptor


def _open(path: Path) -> int:
    while True:
        try:
            return os.open(path, OPEN)
        except FileNotFoundError:
            pass
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise UnsafeLockFile(errno.ELOOP, "it is a link", str(path)) from None
            raise
        with suppress(FileExistsError):
            descriptor = os.open(path, OPEN | os.O_CREAT | os.O_EXCL, MODE)
            # Whatever our umask is; through the descriptor, so that it is the file we made.
            os.fchmod(descriptor, MODE)
            return descriptor


def check_folder(folder: Path) -> None:
    """Where everybody may write, only a sticky folder keeps others from swapping our files."""
    mode = folder.stat().st_mode
    if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
        text = "all may write to this folder, and it is not sticky (chmod +t)"
        raise UnsafeLockFile(errno.EPERM, text, str(folder))


def _lock(path: Path, *, exclusive: bool, wait: bool) -> int | None:
    """The locked file; None when somebody else holds it."""
    how = fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH
    while True:
        descriptor = open_file(path)
        try:
            fcntl.flock(descriptor, how if wait else how | fcntl.LOCK_NB)
            if _is_still(path, descriptor):
                with suppress(PermissionError):
                    # So that nobody who tidies up takes it for forgotten.
                    os.utime(descriptor)
                return descriptor
        except BlockingIOError:
            os.close(descriptor)
            return None
        except BaseException:
            os.close(descriptor)
            raise
        # Removed meanwhile: what we hold would keep nobody off.
        os.close(descriptor)


def _is_still(path: Path, descriptor: int) -> bool:
    with suppress(FileNotFoundError):
        return os.path.samestat(path.stat(follow_symlinks=False), os.fstat(descriptor))
    return False


def _mark(descriptor: int, instance: int) -> bool:
    """Take our instance's byte; False when another instance has one.

    First take, then look: of two that do so at once, at least one sees the other.
    """
    _ofd(descriptor, fcntl.F_OFD_SETLK, fcntl.F_RDLCK, instance, 1)
    before, after = (1, instance - 1), (instance + 1, 0)
    return all(_is_free(descriptor, *part) for part in (before, after) if part != (1, 0))


def _is_free(descriptor: int, start: int, length: int) -> bool:
    answer = _ofd(descriptor, fcntl.F_OFD_GETLK, fcntl.F_WRLCK, start, length)
    return bool(answer == fcntl.F_UNLCK)


def _ofd(descriptor: int, command: int, kind: int, start: int, length: int) -> int:
    wanted = struct.pack(_FLOCK, kind, os.SEEK_SET, start, length, 0)
    answer: int = struct.unpack(_FLOCK, fcntl.fcntl(descriptor, command, wanted))[0]
    return answer


def describe(refused: Refused) -> str:
    """Who holds it, in words."""
    return f"{refused.file} is held by {names(refused.by)}"


def problem(error: OSError) -> str:
    """Why a lock file can't be used, in words, and what to do."""
    if isinstance(error, FileNotFoundError):
        return f"The folder of lock files {error.filename} is not there; an operator must make it"
    remedy = "; somebody must mend that" if isinstance(error, UnsafeLockFile) else ""
    return f"{error.filename or 'The lock file'} can't be locked: {error.strerror}{remedy}"


def names(by: Sequence[Holder]) -> str:
    return ", ".join(holder.name for holder in by) or "a process that can't be seen from here"
