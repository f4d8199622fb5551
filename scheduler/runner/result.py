"""Edge: write result.json so that neither a full disk nor a power cut loses the exit code."""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from pathlib import Path

from scheduler.runner import files
from scheduler.runner.spec import TEXT_LIMIT, Result

RESERVED_BYTES = 8192
RETRY_S = 1.0


class ReservedResult:
    """result.json with its space taken before the job runs."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._part = folder / f"{files.RESULT}.{os.getpid()}"
        self._file: int | None = None

    @classmethod
    def of_runner(cls, folder: Path, runner: int) -> ReservedResult:
        """The space that a dead runner has reserved."""
        report = cls(folder)
        report._part = folder / f"{files.RESULT}.{runner}"
        with suppress(OSError):
            report._file = os.open(report._part, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        return report

    def reserve(self) -> int:
        """Reserve disk space. Raises OSError without space, so that the job is not started."""
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        file = os.open(self._part, flags, 0o600)
        try:
            os.posix_fallocate(file, 0, RESERVED_BYTES)
        except OSError:
            os.close(file)
            raise
        self._file = file
        return file

    def discard(self) -> None:
        """Free the space: there is no result."""
        self._part.unlink(missing_ok=True)

    def publish(self, result: Result) -> bool:
        """Write the result and sync it to the disk, with retries until that succeeds.

        False: the attempt's folder was deleted, so no result is needed.
        """
        while self._folder.is_dir():
            with suppress(OSError):
                self._write(result)
                return True
            time.sleep(RETRY_S)
        return False

    def _write(self, result: Result) -> None:
        file = self.reserve() if self._file is None else self._file
        body = result.to_json()
        body["problem"] = result.problem and result.problem[:TEXT_LIMIT]
        text = json.dumps(body).encode()
        os.pwrite(file, text, 0)
        os.ftruncate(file, len(text))
        os.fsync(file)
        self._part.replace(self._folder / files.RESULT)
        _sync_folder(self._folder)


def _sync_folder(folder: Path) -> None:
    """Make the new name last a power cut, if that can be had; it is there already."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
