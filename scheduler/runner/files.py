"""Edge: the files of an attempt's folder, and how they are written.

    spec.json     what to run, written before the runner starts
    claimed       the process that may run this attempt; created once, by a runner or the executor
    started.json  the runner's and the job's identity
    result.json   how it ended
    output.log    stdout and stderr, in order
    stdin         standard input of the job, if it has one; removed once it is open

Standard library only: the runner imports it without Django.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import stat
import subprocess
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from scheduler.runner import process_tree
from scheduler.runner.process_tree import ProcessInfo
from scheduler.runner.spec import Spec

JOBS = "jobs"
SPEC = "spec.json"
CLAIMED = "claimed"
STARTED = "started.json"
RESULT = "result.json"
LOG = "output.log"
STDIN = "stdin"
# The mode of a file that only its account may read.
PRIVATE = 0o600
# Of a JSON file, in bytes: an environment fits in.
LARGEST = 16 * 1024**2


def jobs_folder(data: Path) -> Path:
    return data / JOBS


def attempt_folder(data: Path, job_id: int, number: int) -> Path:
    return data.joinpath(JOBS, str(job_id), str(number))


def log_path(data: Path, job_id: int, number: int) -> Path:
    return attempt_folder(data, job_id, number) / LOG


def make_folder(folder: Path) -> None:
    """Make an attempt's folder, readable by the service's account alone."""
    for path in (folder.parent.parent, folder.parent, folder):
        path.mkdir(mode=0o700, exist_ok=True)


def write_json(path: Path, body: dict[str, Any], mode: int = PRIVATE) -> None:
    """Write the file as a whole or not at all; by default only this account may read it."""
    write_private(path, json.dumps(body).encode(), mode)


def write_private(path: Path, data: bytes, mode: int = PRIVATE) -> None:
    """The same for any content."""
    part = _draft(path, data, mode)
    try:
        part.replace(path)
    except OSError:
        _remove(part)
        raise


def _draft(path: Path, data: bytes, mode: int = PRIVATE) -> Path:
    """A new file with this content beside `path`.

    Another account may write in the folder. It can't foresee the name, and no link is followed.
    """
    part = path.with_name(f"{path.name}.{os.urandom(8).hex()}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(part, flags, PRIVATE)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            if mode != PRIVATE:
                os.fchmod(file.fileno(), mode)
    except OSError:
        _remove(part)
        raise
    return part


def _remove(part: Path) -> None:
    with contextlib.suppress(OSError):
        part.unlink()


def read_json(path: Path) -> dict[str, Any] | None:
    """The JSON object of a file; None: no file, no object, or larger than LARGEST."""
    try:
        descriptor = _open_regular(path)
        try:
            # A buffer of the largest size would have to be mapped for each file.
            text = _read_to_end(descriptor, os.fstat(descriptor).st_size)
        finally:
            os.close(descriptor)
        body = json.loads(text) if len(text) <= LARGEST else None
    except (OSError, ValueError, RecursionError):
        return None
    return body if isinstance(body, dict) else None


def _read_to_end(descriptor: int, expected: int) -> bytes:
    """The content, at most LARGEST + 1 bytes of it. It may have grown since it was measured."""
    text = os.read(descriptor, min(expected, LARGEST) + 1)
    while len(text) <= LARGEST and (more := os.read(descriptor, LARGEST + 1 - len(text))):
        text += more
    return text


def _open(path: Path) -> BinaryIO:
    return os.fdopen(_open_regular(path), "rb")


def _open_regular(path: Path) -> int:
    """Open a regular file. Jobs can put other things there: a link, or a pipe, which would wait."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return descriptor


def drop_environment(folder: Path, body: dict[str, Any] | None = None) -> None:
    """Take the job's variables out of spec.json: they are not read again, and may be secrets.

    body: of the file, if it is known. A full disk must not keep the job from running, so an error
    leaves them there.
    """
    body = read_json(folder / SPEC) if body is None else body
    if body is not None and body.get("env"):
        with contextlib.suppress(OSError):
            write_json(folder / SPEC, body | {"env": {}})


def read_tail(path: Path, most: int) -> bytes:
    """The last bytes of a file; b"" if it does not exist.

    A second name may be that of a file which the job could not read.
    """
    try:
        with _open(path) as file:
            if os.fstat(file.fileno()).st_nlink > 1:
                return b""
            file.seek(max(0, file.seek(0, os.SEEK_END) - most))
            return file.read(most)
    except OSError:
        return b""


def read_given(path: Path, most: int) -> bytes:
    """A file that a job has written; b"" if it is missing, a link or no regular file.

    It is cut off after `most` bytes.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags)
    except OSError:
        return b""
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(file.fileno())
        # A second name may be that of a file which the job could not read.
        if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
            return b""
        return file.read(most)


def claim(folder: Path, body: dict[str, Any]) -> bool:
    """Claim the attempt; True for exactly one caller.

    The file is linked with its content, so that readers always see the claimant.
    """
    part = _draft(folder / CLAIMED, json.dumps(body).encode())
    try:
        os.link(part, folder / CLAIMED)
    except FileExistsError:
        return False
    else:
        return True
    finally:
        _remove(part)


# Edge: copy one open file with rsync.


LONGEST_S = 60.0
LONGEST_TEXT = 300


class CopyFailed(Exception):
    """The text says why."""


def make_folders(root: Path, folder: Path) -> None:
    """Make the folders from `root` to `folder`, private to this account.

    Raises CopyFailed if another account could lead the copy elsewhere, as by a planted link.
    """
    try:
        top = root.stat()
        if top.st_mode & stat.S_IWOTH and not top.st_mode & stat.S_ISVTX:
            raise CopyFailed(f"Every account can change {root}.")
        # A file server may show files of root as those of another account.
        owners = {0, os.geteuid(), top.st_uid}
        below = root
        for part in folder.relative_to(root).parts:
            below = below / part
            with suppress(FileExistsError):
                below.mkdir(mode=0o700)
            status = below.lstat()
            is_closed = not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
            if not (stat.S_ISDIR(status.st_mode) and status.st_uid in owners and is_closed):
                raise CopyFailed(f"{below} is a link, or another account can change it.")
    except OSError as error:
        raise CopyFailed(f"{folder}: {error.strerror or error}.") from None


def copy(handle: int, target: Path, longest_s: float = LONGEST_S) -> None:
    """Copy the file behind the handle to `target`, in an existing folder. Raises CopyFailed.

    The file is named by its handle, so that no process can replace it. A copy that takes too long
    continues at the next call where it stopped.
    """
    try:
        done = subprocess.run(
            [
                # The copy belongs to this account, so it must not give its rights away.
                "rsync", "--copy-links", "--times", "--perms", "--chmod=ug-s", "--partial", "--",
                f"/proc/self/fd/{handle}", str(target),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            pass_fds=(handle,),
            timeout=longest_s,
            env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C.UTF-8"},
            check=False,
        )  # fmt: skip
    except FileNotFoundError:
        raise CopyFailed("rsync is not installed.") from None
    except subprocess.TimeoutExpired:
        raise CopyFailed(f"Copying takes longer than {longest_s:g} s; it is continued.") from None
    except OSError as error:
        raise CopyFailed(f"{target.parent}: {error.strerror or error}.") from None
    if done.returncode:
        text = done.stderr.decode(errors="replace").strip()[-LONGEST_TEXT:]
        raise CopyFailed(f"rsync ended with {done.returncode}: {text or 'no message'}")


# The file that tells a job that it is to leave, or to save its work.


READABLE = 0o644


@dataclass(frozen=True, slots=True)
class YieldRequestFile:
    """Why a job is to leave its GPUs, and when it is killed (seconds since 1970)."""

    reason: str
    deadline: float
    withdrawn: bool = False

    @property
    def for_job(self) -> dict[str, Any]:
        return {"reason": self.reason, "deadline": self.deadline}


def notify_job(
    request: YieldRequestFile, spec: Spec, processes: Callable[[], list[ProcessInfo]]
) -> None:
    """Notify the job: write the file, then send the declared signal to processes that handle it."""
    path = Path(spec.yield_file)
    if not spec.yield_file or read_json(path) == request.for_job:
        return
    # The job may run as another account; it sees the whole file or none.
    write_json(path, request.for_job, READABLE)
    if spec.yield_signal:
        number = signal.Signals[spec.yield_signal]
        for process in processes():
            if process_tree.handles_signal(process.pid, number):
                process_tree.signal_one(process.pid, process.start_ticks, number)
