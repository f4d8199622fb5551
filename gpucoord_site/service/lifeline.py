"""The lifeline: a pipe whose write end only the supervisor has. Its end of file means: stop."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Sequence
from typing import Protocol

VARIABLE = "GPUCOORD_LIFELINE"


class Readable(Protocol):
    def fileno(self) -> int: ...


class Lifeline:
    """Tells a worker whether its supervisor and its parent are alive."""

    def __init__(self) -> None:
        self._fd = int(os.environ.get(VARIABLE, "-1"))
        self._parent = os.getppid()

    def is_cut(self) -> bool:
        """Whether the supervisor or the original parent of this process has ended."""
        return os.getppid() != self._parent or bool(self._fd >= 0 and _readable([self._fd], 0))

    def wait(self, seconds: float, *others: Readable) -> bool:
        """Sleep until the time is over, one of `others` is readable, or the lifeline is cut.

        Returns whether one of `others` is readable.
        """
        fds = [o.fileno() for o in others]
        lifeline = [self._fd] if self._fd >= 0 else []
        return bool(set(_readable(lifeline + fds, max(0.0, seconds))) & set(fds))


def _readable(fds: Sequence[int], seconds: float) -> list[int]:
    if not fds:
        time.sleep(seconds)
        return []
    poll = select.poll()
    for fd in fds:
        poll.register(fd, select.POLLIN)
    return [fd for fd, _ in poll.poll(seconds * 1000)]
