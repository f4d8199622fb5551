"""Rows -> facts: how long people's jobs usually take, by owner and name."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from datetime import datetime, timedelta

from scheduler.jobs import JobState, Outcome
from scheduler.models import Job

# Enough to judge by, and quickly read.
NEWEST = 2000
LEAST = 3
READ_AGAIN = timedelta(minutes=2)


@dataclass(frozen=True, slots=True)
class Usual:
    """p50: half of them took no longer; p90: nine of ten. `count`: so many there were."""

    p50: timedelta
    p90: timedelta
    count: int


class Durations:
    """Call it with an owner and a job's name; None = too few of them have ended."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], Usual] = {}
        self._read_at: datetime | None = None

    def refresh(self, now: datetime) -> None:
        """Read them anew when that was some time ago."""
        if self._read_at is None or not timedelta() <= now - self._read_at < READ_AGAIN:
            self._known, self._read_at = _load(), now

    def __call__(self, owner: str, name: str) -> Usual | None:
        return self._known.get((owner, name))


def _load() -> dict[tuple[str, str], Usual]:
    """From the newest that ran to their own end, or to their limit."""
    over = (Outcome.SUCCEEDED.value, Outcome.TIMED_OUT.value)
    rows = Job.objects.filter(
        state=JobState.FINISHED.value, outcome__in=over, started_at__isnull=False
    ).order_by("-id")
    took: dict[tuple[str, str], list[timedelta]] = defaultdict(list)
    for owner, name, begun, ended in rows.values_list(
        "owner__username", "name", "started_at", "ended_at"
    )[:NEWEST]:
        if begun is not None and ended is not None:
            took[owner, name].append(ended - begun)
    return {key: usual(times) for key, times in took.items() if len(times) >= LEAST}


def usual(times: list[timedelta]) -> Usual:
    """The nearest ranks of at least one time."""
    ranked, count = sorted(times), len(times)
    return Usual(ranked[(count - 1) // 2], ranked[-(-count * 9 // 10) - 1], count)
