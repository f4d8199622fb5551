"""Edge: take away the folders of ended jobs, a little at a time, whatever a job has laid in them.

A folder is first moved aside, at once and whole, then emptied. Everything goes by open folders and
names in them, so a link leads nowhere. A folder in a folder is moved up beside it, so however deep
they are, two are open at a time.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from monitor.facts import input_rules
from scheduler.facts.jobs import LARGEST_RESULT
from scheduler.facts.scripts import Answer
from scheduler.runner import files
from scheduler.runner.files import READABLE
from scheduler.runner.programs import worker

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


# How the service gives items to the workers of a batch on its host, and reads answers.
#
# programs/worker.py describes the files. Their folder belongs to the job's account, and outlives
# the jobs of the workers. Without the scheduler, workers go on with the items at hand.


LARGEST_LIST = 8 * 1024**2
TOO_LARGE = f"The answer is larger than {LARGEST_RESULT // 1024} KiB."
UNREADABLE = "The answer can't be read."
_NAME = re.compile(r"batch-(\d{1,18})")


def folder_name(batch: int) -> str:
    """Of the folder of a batch, beside those of jobs."""
    return f"batch-{batch}"


@dataclass(frozen=True, slots=True)
class WorkerFiles:
    """The files of a batch on this host, in a folder of the job's account."""

    folder: Path

    def publish(self, body: Mapping[str, Any]) -> None:
        """Write the list of items, if it has changed."""
        path = self.folder / worker.LIST
        text = json.dumps(body).encode()
        if files.read_given(path, LARGEST_LIST) != text:
            # Only its account can enter the folder.
            files.write_private(path, text, READABLE)

    def answer(self, index: int, attempt: int) -> Answer | None:
        """None: no worker has taken this try of the item."""
        text = files.read_given(self.folder / f"{index}.{attempt}", LARGEST_RESULT + 1)
        return _answer(text) if text else None


def _answer(text: bytes) -> Answer:
    """An account may write anything there; a file that makes no sense fails its item."""
    if len(text) > LARGEST_RESULT:
        return Answer(ended=0.0, error=TOO_LARGE)
    try:
        body = input_rules.parse_json(text)
        job, attempt, began = int(body["job"]), int(body["attempt"]), float(body["began"])
        ended = float(body["ended"]) if "ended" in body else None
        if not (isfinite(began) and isfinite(ended or 0.0)):
            return Answer(ended=0.0, error=UNREADABLE)
    except (ValueError, TypeError, KeyError, OverflowError):
        return Answer(ended=0.0, error=UNREADABLE)
    error = body.get("error")
    return Answer(
        job=job,
        attempt=attempt,
        began=began,
        ended=ended,
        output=body.get("output"),
        error=None if error is None else str(error),
        returned=body.get("returned") is True,
    )


def batches_with_files(roots: list[Path]) -> Iterator[tuple[Path, int]]:
    """The folders of batches in these, each with its number."""
    for root in roots:
        for path in root.glob("batch-*"):
            if match := _NAME.fullmatch(path.name):
                yield root, int(match[1])
