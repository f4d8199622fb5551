"""Step: a job that was asked to leave for another may stay, when that one needs its GPU no more."""

from __future__ import annotations

from datetime import datetime

from monitor.stepping import Guard
from scheduler import yielding


class Withdrawer:
    """`step(now)` takes back what was asked of jobs on `host` for nobody."""

    def __init__(self, guard: Guard, host: str) -> None:
        self._guard = guard
        self._host = host

    def step(self, now: datetime) -> list[int]:
        """Returns the jobs that may stay."""
        idle = yielding.idle(self._host, now)
        if not idle:
            return []
        with self._guard():
            for asked in idle:
                yielding.withdraw(asked, now)
        return [asked.attempt.job_id for asked in idle]
