"""Edge: lock files that keep independent programs from using the same GPU.

    gpu.lock    the whole host; an exclusive flock reserves all GPUs
    gpu0.lock   one GPU, by its index; exclusive or shared

Files are opened read-only, so every account that can read them can lock them. Nothing is written
into them, links are not followed, and other kinds of files are rejected. Besides flock, jobs of
gpucoord lock one byte (an open-file-description lock) that identifies their instance: several
instances never share a GPU, while shared jobs of one instance do. Standard library only.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import pwd
import select
import stat
import struct
import zlib
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from scheduler.runner import process_tree

RUNNER = "gpucoord-runner"


@dataclass(frozen=True, slots=True, kw_only=True)
class LockHolder:
    """A process that holds a lock file. alone: exclusively. None = unknown."""

    pid: int
    start_ticks: int | None = None
    user: str | None = None
    program: str | None = None
    alone: bool = True

    @property
    def name(self) -> str:
        """For display: "bob/train.py (pid 88)"."""
        if self.program == RUNNER:
            whose = f" of {self.user}" if self.user else ""
            return f"a gpucoord job{whose} (runner {self.pid})"
        parts = "/".join(word for word in (self.user, self.program) if word)
        return f"{parts or 'process of an unknown user'} (pid {self.pid})"


def holders(files: Iterable[Path]) -> dict[Path, tuple[LockHolder, ...]]:
    """Visible holders of each of these files, from /proc/locks; no lock is taken."""
    wanted: dict[int, list[tuple[Path, os.stat_result]]] = {}
    by_path: dict[Path, list[LockHolder]] = {}
    for file in files:
        by_path[file] = []
        with suppress(OSError):
            status = file.stat(follow_symlinks=False)
            wanted.setdefault(status.st_ino, []).append((file, status))
    if wanted:
        for inode, device, pid, alone in flocks(_lock_table()):
            for file, status in wanted.get(inode, ()):
                if _is_same(device, status, pid):
                    by_path[file].append(_holder(_living(pid, status), alone=alone))
    return {file: tuple(file_holders) for file, file_holders in by_path.items()}


def _lock_table() -> str:
    with suppress(OSError):
        return Path("/proc/locks").read_text()
    return ""


def flocks(table: str) -> Iterable[tuple[int, tuple[int, int], int, bool]]:
    """(inode, device, pid, alone) of every held flock of /proc/locks, without waiting ones."""
    for line in table.splitlines():
        words = line.split()
        if len(words) < 6 or words[1] != "FLOCK":
            continue
        with suppress(ValueError):
            major, minor, inode = words[5].split(":")
            device = int(major, 16), int(minor, 16)
            yield int(inode), device, int(words[4]), words[3] == "WRITE"


def _is_same(device: tuple[int, int], status: os.stat_result, pid: int) -> bool:
    """Some file systems have another device number there; then the open files decide."""
    if device == (os.major(status.st_dev), os.minor(status.st_dev)):
        return True
    return _has_open(pid, status)


def _living(pid: int, status: os.stat_result) -> int:
    """The process that locked it; once that has ended, one that has the file still open.

    A shell's `flock 9` ends at once, and the shell has the lock.
    """
    if process_tree.start_ticks_of(pid) is not None:
        return pid
    others = (int(name) for name in os.listdir("/proc") if name.isdigit())  # noqa: PTH208
    return next((other for other in others if _has_open(other, status)), pid)


def _has_open(pid: int, status: os.stat_result) -> bool:
    folder = f"/proc/{pid}/fd"
    with suppress(OSError):
        for name in os.listdir(folder):  # noqa: PTH208
            with suppress(OSError):
                if os.path.samestat(Path(folder, name).stat(), status):
                    return True
    return False


def _holder(pid: int, *, alone: bool) -> LockHolder:
    program = _program(pid)
    return LockHolder(
        pid=pid,
        start_ticks=process_tree.start_ticks_of(pid),
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
        # A process chooses its name: any bytes.
        name = Path(f"/proc/{pid}/comm").read_bytes().decode(errors="replace")
        return "".join(c if c.isprintable() else "?" for c in name.strip()) or None
    return None


HOST_FILE = "gpu.lock"
# Readable by all: that is enough to lock it.
MODE = 0o644
OPEN = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
# The end of a refusal that lasts until the file is mended.
REMEDY_HINT = "; the page of the GPU says how to mend it"
KINDS = {stat.S_IFIFO: "is a FIFO", stat.S_IFDIR: "is a folder", stat.S_IFLNK: "is a link"}
_FLOCK = "hhqqi"
_LAST_BYTE = 2**30


class UnsafeLockFile(OSError):
    """The path of a lock file is no plain file, or others can replace it."""


@dataclass(slots=True)
class HeldLocks:
    """Locks that last until `release`, or until the last process that has them open ends."""

    descriptors: list[int] = field(default_factory=list)

    def release(self) -> None:
        while self.descriptors:
            os.close(self.descriptors.pop())

    def unlock(self) -> None:
        """Release them also for other processes that have them open."""
        for descriptor in self.descriptors:
            fcntl.flock(descriptor, fcntl.LOCK_UN)
            _ofd(descriptor, fcntl.F_OFD_SETLK, fcntl.F_UNLCK, 0, 0)
        self.release()


@dataclass(frozen=True, slots=True)
class LockRefused:
    """Another program holds `file`. by: its visible holders."""

    file: Path
    by: tuple[LockHolder, ...]


def gpu_lock_file(folder: Path, index: int) -> Path:
    return folder / f"gpu{index}.lock"


def instance_number(data: str) -> int:
    """A number for the gpucoord instance with this data folder; never 0."""
    return zlib.crc32(data.encode()) % (_LAST_BYTE - 1) + 1


def lock_gpus(
    folder: Path,
    indices: Iterable[int],
    *,
    alone: bool,
    instance: int | None = None,
    wait: bool = False,
) -> HeldLocks | LockRefused:
    """Lock these GPUs, all or none. alone: exclusively; else shared with other shared locks.

    instance: also exclude other gpucoord instances. wait: until all are free, in the order of the
    indices, so that no deadlock is possible.
    """
    locks = HeldLocks()
    files = [(folder / HOST_FILE, False)]
    files += [(gpu_lock_file(folder, index), alone) for index in sorted(set(indices))]
    try:
        for number, (file, exclusive) in enumerate(files):
            descriptor = _lock(file, exclusive=exclusive, wait=wait)
            if descriptor is None:
                locks.release()
                return LockRefused(file, holders([file])[file])
            locks.descriptors.append(descriptor)
            if number and instance is not None and not _mark(descriptor, instance):
                locks.release()
                return LockRefused(file, holders([file])[file])
    except BaseException:
        locks.release()
        raise
    return locks


def lock_host(folder: Path, *, wait: bool = False) -> HeldLocks | LockRefused:
    """Lock the whole host, alone."""
    file = folder / HOST_FILE
    descriptor = _lock(file, exclusive=True, wait=wait)
    if descriptor is None:
        return LockRefused(file, holders([file])[file])
    return HeldLocks([descriptor])


def open_file(path: Path) -> int:
    """A descriptor of the lock file, which is created if it is missing."""
    check_folder(path.parent)
    descriptor = _open(path)
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
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
            # Our umask must not matter; through the descriptor, so that it is the file we made.
            os.fchmod(descriptor, MODE)
            return descriptor


def gpu_lock_fault(folder: Path, index: int) -> str:
    """Why this GPU's lock files cannot be used, and what to do; "" = they can."""
    try:
        check_folder(folder)
    except UnsafeLockFile:
        return f"All accounts can replace lock files in {folder}. To mend it: chmod +t {folder}."
    except OSError:
        # A missing or closed folder is reported when a lock is taken.
        return ""
    return lock_file_fault(folder / HOST_FILE) or lock_file_fault(gpu_lock_file(folder, index))


def lock_file_fault(path: Path) -> str:
    """Why this cannot be a lock file, and what to do; "" = it can, or it does not exist."""
    try:
        status = path.lstat()
    except OSError:
        return ""
    if stat.S_ISREG(status.st_mode):
        if status.st_nlink == 1:
            return ""
        fault = f"has {status.st_nlink} hard links"
    else:
        fault = KINDS.get(stat.S_IFMT(status.st_mode), "is not a plain file")
    remedy = "rmdir" if stat.S_ISDIR(status.st_mode) else "rm"
    return f"The lock file {path} {fault}. To mend it: {remedy} {path}."


def check_folder(folder: Path) -> None:
    """In a folder that all may write, only the sticky bit prevents others from replacing files."""
    mode = folder.stat().st_mode
    if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
        text = "all may write to this folder, and it is not sticky (chmod +t)"
        raise UnsafeLockFile(errno.EPERM, text, str(folder))


def _lock(path: Path, *, exclusive: bool, wait: bool) -> int | None:
    """The locked file; None: another program holds it."""
    how = fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH
    while True:
        descriptor = open_file(path)
        try:
            fcntl.flock(descriptor, how if wait else how | fcntl.LOCK_NB)
            if _is_still(path, descriptor):
                with suppress(PermissionError):
                    # A recent time, so that cleaners of temporary folders keep the file.
                    os.utime(descriptor)
                return descriptor
        except BlockingIOError:
            os.close(descriptor)
            return None
        except BaseException:
            os.close(descriptor)
            raise
        # It was removed meanwhile, so the lock would exclude no process.
        os.close(descriptor)


def _is_still(path: Path, descriptor: int) -> bool:
    with suppress(FileNotFoundError):
        return os.path.samestat(path.stat(follow_symlinks=False), os.fstat(descriptor))
    return False


def _mark(descriptor: int, instance: int) -> bool:
    """Lock our instance's byte; False: another instance has one.

    The byte is locked before the check, so that of two concurrent callers one sees the other.
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


def describe_refusal(refused: LockRefused) -> str:
    """A sentence that names the holder."""
    return f"{refused.file} is held by {holder_names(refused.by)}"


def describe_error(error: OSError) -> str:
    """A sentence on why a lock file cannot be used, and what to do."""
    if isinstance(error, FileNotFoundError):
        return f"The folder of lock files {error.filename} is not there; an operator must make it"
    remedy = REMEDY_HINT if isinstance(error, UnsafeLockFile) else ""
    return f"{error.filename or 'The lock file'} can't be locked: {error.strerror}{remedy}"


def holder_names(by: Sequence[LockHolder]) -> str:
    return ", ".join(holder.name for holder in by) or "a process that can't be seen from here"


PR_SET_NAME = 15


def keep_open() -> None:
    """Keep the locks until this process, or the command that it executes, has ended.

    The keeper is detached, so that no process waits for it.
    """
    ends = os.pidfd_open(os.getpid())
    child = os.fork()
    if child == 0:
        try:
            if os.fork() == 0:
                _wait(ends)
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(ends)


def _wait(ends: int) -> None:
    os.setsid()
    os.chdir("/")
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
    ctypes.CDLL(None).prctl(PR_SET_NAME, b"gpucoord-lock", 0, 0, 0)
    poll = select.poll()
    poll.register(ends, select.POLLIN)
    poll.poll()
