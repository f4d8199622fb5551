"""Edge: limit the size of a job's log; beyond the limit only the end is kept.

The job writes directly into the file. Data beyond the limit is cut off regularly. Its last part is
appended when the job has ended, because it often contains the reason.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress

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
