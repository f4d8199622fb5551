"""Edge: take away the folders of ended jobs, a little at a time, whatever a job has laid in them.

A folder is first moved aside, at once and whole, then emptied. Everything goes by open folders and
names in them, so a link leads nowhere. A folder in a folder is moved up beside it, so however deep
they are, two are open at a time.
"""

from __future__ import annotations

import os
import secrets
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

# Folders to delete are moved into this one, beside the jobs' folders.
ASIDE = ".cleared"
DEEPEST = 60
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def move_aside(root: Path, name: str) -> bool:
    """Move an entry of `root` aside; False: it cannot be moved."""
    try:
        with _opened(root) as folder, _aside(folder) as aside:
            os.rename(name, _new_name(), src_dir_fd=folder, dst_dir_fd=aside)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def empty(root: Path, until: float) -> bool:
    """Delete moved entries until this monotonic time; True: nothing is left."""
    try:
        with _opened(root) as folder, _aside(folder) as aside:
            while names := os.listdir(aside):  # noqa: PTH208 - a handle
                deleted = [_delete(aside, name, until) for name in names]
                if not any(deleted) or time.monotonic() >= until:
                    return False
    except OSError:
        return False
    return True


def size_of(root: Path, name: str, until: float) -> int:
    """Disk usage of a folder, except unreadable, too deep or late parts."""
    total, folders = 0, [(root / name, 0)]
    while folders and time.monotonic() < until:
        folder, depth = folders.pop()
        with suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                with suppress(OSError):
                    total += entry.stat(follow_symlinks=False).st_blocks * 512
                    if depth < DEEPEST and entry.is_dir(follow_symlinks=False):
                        folders.append((Path(entry.path), depth + 1))
    return total


def _delete(aside: int, name: str, until: float) -> bool:
    """Delete one entry; folders inside a folder are moved beside it. False: it is not deleted."""
    try:
        folder = _unlocked(name, aside)
        if folder is None:
            os.unlink(name, dir_fd=aside)
            return True
        try:
            _empty_one(folder, aside, until)
        finally:
            os.close(folder)
        os.rmdir(name, dir_fd=aside)
    except OSError:
        return False
    return True


def _empty_one(folder: int, aside: int, until: float) -> None:
    with os.scandir(folder) as entries:
        for entry in entries:
            if time.monotonic() >= until:
                return
            with suppress(OSError):
                if entry.is_dir(follow_symlinks=False):
                    _close(_unlocked(entry.name, folder))
                    os.rename(entry.name, _new_name(), src_dir_fd=folder, dst_dir_fd=aside)
                else:
                    os.unlink(entry.name, dir_fd=folder)


def _unlocked(name: str, parent: int) -> int | None:
    """A folder, opened, that we may change, whatever its owner had set; None: it is none."""
    handle = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        if not stat.S_ISDIR(os.fstat(handle).st_mode):
            return None
        with suppress(PermissionError):
            # By the handle: its name may mean something else by now.
            Path(f"/proc/self/fd/{handle}").chmod(0o700)
        return os.open(".", _FOLDER, dir_fd=handle)
    finally:
        os.close(handle)


def _close(folder: int | None) -> None:
    if folder is not None:
        os.close(folder)


@contextmanager
def _opened(root: Path) -> Iterator[int]:
    folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield folder
    finally:
        os.close(folder)


@contextmanager
def _aside(root: int) -> Iterator[int]:
    """The folder for entries to delete; it must belong to this account."""
    with suppress(FileExistsError):
        os.mkdir(ASIDE, 0o700, dir_fd=root)
    folder = os.open(ASIDE, _FOLDER, dir_fd=root)
    try:
        if os.fstat(folder).st_uid != os.geteuid():
            raise PermissionError(f"{ASIDE} is not a folder of the service's account")
        yield folder
    finally:
        os.close(folder)


def _new_name() -> str:
    return secrets.token_hex(8)
