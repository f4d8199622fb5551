"""Seconds that count: those in which nobody on this machine waits for a core or for the disk.

What must happen within some seconds is held to them where the machine has time for it; where
others keep it busy, as beside other tests, their share does not count against it.
"""

from __future__ import annotations

import bisect
import time
from pathlib import Path

PRESSURE = Path("/proc/pressure")
# Longer than this, nothing is waited for, however busy the machine.
LONGEST_S = 120.0


def stalled_s() -> float:
    """Seconds since the machine started in which somebody waited; 0 where the kernel can't tell."""
    return sum(map(_stalled_for, ("cpu", "io")))


def _stalled_for(what: str) -> float:
    try:
        line = (PRESSURE / what).read_text().partition("\n")[0]
    except OSError:
        return 0.0
    return int(line.rpartition("total=")[2]) / 1e6


class Stopwatch:
    """Runs from when it is made."""

    def __init__(self) -> None:
        self._begun = time.monotonic()
        self._stalled = stalled_s()

    @property
    def wall_s(self) -> float:
        return time.monotonic() - self._begun

    @property
    def seconds(self) -> float:
        return max(0.0, self.wall_s - (stalled_s() - self._stalled))

    def has_run(self, seconds: float) -> bool:
        return self.wall_s > seconds and (self.seconds > seconds or self.wall_s > LONGEST_S)


class PaceLog:
    """Tells afterwards how many seconds counted between two moments (seconds since 1970)."""

    def __init__(self) -> None:
        self._looks: list[tuple[float, float]] = []

    def look(self) -> None:
        self._looks.append((time.time(), stalled_s()))

    def seconds(self, begin: float, end: float) -> float:
        return max(0.0, (end - begin) - (self._stalled_at(end) - self._stalled_at(begin)))

    def _stalled_at(self, t: float) -> float:
        """By the first look after it, or else the last."""
        place = bisect.bisect_left(self._looks, (t, 0.0))
        return self._looks[min(place, len(self._looks) - 1)][1]
