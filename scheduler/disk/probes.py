"""Edge: the space of file systems, read in a thread because a dead network mount never answers."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import signal
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread
from typing import TypeVar

from monitor.runtime.probes import disk_space
from scheduler.disk.policy import DATABASE_ENDINGS, CleanResult, DiskSpace, FileEntry

T = TypeVar("T")
PATIENCE_S = 2.0
NETWORK = ("nfs", "nfs4", "cifs", "smb3", "ceph", "glusterfs", "lustre", "9p", "afs")
NO_ANSWER = "The file system does not answer."
# Questions about folders that are still without an answer.
_pending: dict[str, Event] = {}


class Unreadable(Exception):
    """The space of a folder cannot be read; the text says why."""


def read(path: str, patience_s: float = PATIENCE_S) -> DiskSpace:
    """Raises Unreadable, within `patience_s`. A folder that hangs is not asked again meanwhile."""
    return _answered(f"space of {path}", lambda: _ask(path), patience_s)


def _answered(name: str, ask: Callable[[], T], patience_s: float) -> T:
    """The answer of a thread. Raises Unreadable, also while an earlier question hangs."""
    pending = _pending.get(name)
    if pending is not None and not pending.is_set():
        raise Unreadable(NO_ANSWER)
    done, answers, errors = Event(), list[T](), list[OSError]()

    def work() -> None:
        try:
            answers.append(ask())
        except OSError as error:
            errors.append(error)
        done.set()

    _pending[name] = done
    Thread(target=work, name=name, daemon=True).start()
    if not done.wait(patience_s):
        raise Unreadable(NO_ANSWER)
    _pending.pop(name, None)
    if errors:
        raise Unreadable(f"{errors[0].strerror or errors[0]}.")
    return answers[0]


def _ask(path: str) -> DiskSpace:
    space = disk_space.read(path)
    return DiskSpace(
        device=_name(Path(path).stat().st_dev),
        used_bytes=space.used_bytes,
        available_bytes=space.available_bytes,
    )


def _name(device: int) -> str:
    return f"{os.major(device)}:{os.minor(device)}"


def device_of(path: str, patience_s: float = PATIENCE_S) -> str | None:
    """The device of a folder or of its nearest parent; None = unknown.

    A folder on a network mount is not touched, as its server may be dead. A link may lead to one,
    so that others are asked in a thread.
    """
    mounts = mount_table(_mountinfo())
    above = [mount for mount in mounts if _is_below(path, mount)]
    nearest = max(above, key=len, default=None)
    if nearest is not None and mounts[nearest][1] in NETWORK:
        return mounts[nearest][0]
    try:
        return _answered(f"device of {path}", lambda: _nearest_device(path), patience_s)
    except Unreadable:
        return None


def _nearest_device(path: str) -> str | None:
    folder = Path(path)
    for candidate in (folder, *folder.parents):
        try:
            return _name(candidate.stat().st_dev)
        except OSError:
            continue
    return None


def _is_below(path: str, mount: str) -> bool:
    return path == mount or path.startswith(f"{mount.rstrip('/')}/")


def _mountinfo() -> str:
    try:
        return Path("/proc/self/mountinfo").read_text(errors="replace")
    except OSError:
        return ""


def mount_table(mountinfo: str) -> dict[str, tuple[str, str]]:
    """Device and type by mount point."""
    mounts = {}
    for line in mountinfo.splitlines():
        words, _, rest = line.partition(" - ")
        fields = words.split()
        mounts[_plain(fields[4])] = (fields[2], rest.split()[0])
    return mounts


def _plain(text: str) -> str:
    """The kernel writes spaces and backslashes of a path as octal numbers."""
    return text.encode().decode("unicode_escape", errors="replace") if "\\" in text else text


# Find, compare and delete files by open folders, so that no link leads elsewhere.
#
# A file is deleted under a write lease: the kernel grants it only while no other process has the
# file open or mapped. Where there are no leases, the open files of all processes are looked
# through, and a file is spared unless that answer is certain.


DEEPEST, MOST_FILES = 24, 200_000
PIECE = 1024 * 1024
Record = Callable[[Callable[[], None]], None]
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
# The header of SQLite, and the number of pages that a database without any table has.
_SQLITE, _SQLITE_PAGES = b"SQLite format 3\0", slice(28, 32)


class UnusableFolder(Exception):
    """A folder cannot be cleaned; the text says why."""


@contextmanager
def opened(path: str) -> Iterator[int]:
    """A folder opened part by part, none of which may be a link. Raises UnusableFolder."""
    folder = os.open("/", _FOLDER)
    try:
        for part in Path(path).parts[1:]:
            below = _below(folder, part, path)
            os.close(folder)
            folder = below
        yield folder
    finally:
        os.close(folder)


def _below(folder: int, part: str, path: str) -> int:
    try:
        return os.open(part, _FOLDER, dir_fd=folder)
    except OSError as error:
        if error.errno in (errno.ENOTDIR, errno.ELOOP):
            why = f"{part} is a link or no folder; list the real path"
        else:
            why = error.strerror or str(error)
        raise UnusableFolder(f"{path} can't be cleaned: {why}.") from None


def walk(root: str, until: float, most: int = MOST_FILES) -> Iterator[FileEntry]:
    """The regular files below a folder, on its file system alone, until this monotonic time.

    Links, files with further names and unreadable folders are left out.
    Raises UnusableFolder if the folder itself cannot be opened.
    """
    with opened(root) as top:
        device, count = os.fstat(top).st_dev, 0
        folders: list[tuple[str, ...]] = [()]
        while folders and time.monotonic() < until:
            parts = folders.pop()
            with suppress(OSError), _opened_below(top, parts) as folder:
                for name, status in _entries(folder):
                    if status.st_dev != device:
                        continue
                    if stat.S_ISDIR(status.st_mode) and len(parts) < DEEPEST:
                        folders.append((*parts, name))
                    elif stat.S_ISREG(status.st_mode) and status.st_nlink == 1:
                        count += 1
                        if count > most:
                            return
                        yield _found_file(root, (*parts, name), status, folder)


def _entries(folder: int) -> Iterator[tuple[str, os.stat_result]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            with suppress(OSError):
                yield entry.name, entry.stat(follow_symlinks=False)


@contextmanager
def _opened_below(top: int, parts: tuple[str, ...]) -> Iterator[int]:
    folder = os.dup(top)
    try:
        for part in parts:
            below = os.open(part, _FOLDER, dir_fd=folder)
            os.close(folder)
            folder = below
        yield folder
    finally:
        os.close(folder)


def _found_file(
    root: str, parts: tuple[str, ...], status: os.stat_result, folder: int
) -> FileEntry:
    is_database = parts[-1].endswith(DATABASE_ENDINGS) and _is_empty(folder, parts[-1])
    return FileEntry(
        root=root,
        parts=parts,
        device=status.st_dev,
        inode=status.st_ino,
        size=status.st_size,
        disk_bytes=status.st_blocks * 512,
        mtime_ns=status.st_mtime_ns,
        ctime_ns=status.st_ctime_ns,
        is_empty_database=is_database,
    )


def _is_empty(folder: int, name: str) -> bool:
    """Whether a database file has no content: no byte, or one SQLite page without a table."""
    try:
        handle = os.open(name, _FILE, dir_fd=folder)
    except OSError:
        return False
    try:
        head = os.read(handle, 108)
        if not head:
            return True
        # A file beside it has changes that are not in it yet.
        if any(_exists(folder, f"{name}{ending}") for ending in ("-wal", "-journal")):
            return False
        is_sqlite = head.startswith(_SQLITE) and head[_SQLITE_PAGES] == b"\0\0\0\1"
        # The first page after the header: a leaf (13) with no cell has no table.
        return is_sqlite and head[100] == 13 and head[103:105] == b"\0\0"
    finally:
        os.close(handle)


def _exists(folder: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except OSError:
        return False
    return True


def delete(file: FileEntry, secure: Callable[[int], bool], record: Record) -> CleanResult:
    """Delete a file, unless it has changed since it was found, or is open.

    secure: copies the file by its handle and says whether the copy is good. record: gets the
    deletion as a function, and calls it in the transaction that records it.
    """
    try:
        with opened(file.root) as top, _opened_below(top, file.parts[:-1]) as folder:
            handle = os.open(file.parts[-1], _FILE, dir_fd=folder)
            try:
                if not _is_same(file, os.fstat(handle)):
                    return CleanResult.CHANGED
                if not secure(handle):
                    return CleanResult.NOT_COPIED
                return _unlink(file, handle, folder, record)
            finally:
                os.close(handle)
    except (FileNotFoundError, NotADirectoryError, UnusableFolder):
        return CleanResult.CHANGED
    except OSError as error:
        # A link in the place of a folder or file.
        return CleanResult.CHANGED if error.errno == errno.ELOOP else CleanResult.REFUSED


def _unlink(file: FileEntry, handle: int, folder: int, record: Record) -> CleanResult:
    if not _is_alone(handle):
        return CleanResult.OPEN
    name = file.parts[-1]
    in_folder = os.stat(name, dir_fd=folder, follow_symlinks=False)
    # No process can open the file now without waiting for us.
    if not (_is_same(file, os.fstat(handle)) and _is_same(file, in_folder)):
        return CleanResult.CHANGED
    record(lambda: os.unlink(name, dir_fd=folder))
    return CleanResult.DELETED


def _is_same(file: FileEntry, status: os.stat_result) -> bool:
    before = (file.device, file.inode, file.size, file.mtime_ns, file.ctime_ns)
    now = (
        status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
    )  # fmt: skip
    return before == now and status.st_nlink == 1 and stat.S_ISREG(status.st_mode)


def _is_alone(handle: int) -> bool:
    """Whether no other process has the file open. The lease lasts until the handle is closed."""
    try:
        # A process that opens it meanwhile causes a signal, which by default ends a process.
        fcntl.fcntl(handle, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(handle, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    except BlockingIOError:
        return False
    except OSError:
        return os.geteuid() == 0 and not _is_open_anywhere(os.fstat(handle))
    return True


def _is_open_anywhere(file: os.stat_result) -> bool:
    """Whether a process has it open or mapped; as root, which sees all processes."""
    own, mapped = str(os.getpid()), f" {file.st_ino} "
    for process in Path("/proc").glob("[0-9]*"):
        if process.name == own:
            continue
        with suppress(OSError):
            if mapped in (process / "maps").read_text(errors="replace"):
                return True
        with suppress(OSError):
            for entry in (process / "fd").iterdir():
                with suppress(OSError):
                    status = entry.stat()
                    if (status.st_dev, status.st_ino) == (file.st_dev, file.st_ino):
                        return True
    return False


def is_copy(handle: int, copy: Path) -> bool:
    """Whether the copy has the size and checksum of the open file, and is on its disk."""
    try:
        other = os.open(copy, _FILE)
    except OSError:
        return False
    try:
        original, duplicate = os.fstat(handle), os.fstat(other)
        if not stat.S_ISREG(duplicate.st_mode) or original.st_size != duplicate.st_size:
            return False
        if (original.st_dev, original.st_ino) == (duplicate.st_dev, duplicate.st_ino):
            return False
        os.fsync(other)
        return _checksum(handle) == _checksum(other)
    except OSError:
        return False
    finally:
        os.close(other)


def _checksum(handle: int) -> str:
    checksum, offset = hashlib.sha256(), 0
    while piece := os.pread(handle, PIECE, offset):
        checksum.update(piece)
        offset += len(piece)
    return checksum.hexdigest()
