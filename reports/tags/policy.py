"""Policy: GPU-hours of jobs by the value of a tag, such as the project."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class TaggedAttempt:
    """An attempt of a job with the tag. sm_s: GPU-seconds used; None = not known (yet)."""

    value: str
    owner: str
    job: int
    gpus: int
    began_at: datetime
    ended_at: datetime | None
    sm_s: float | None


@dataclass(slots=True)
class TagUse:
    """Sums of one value. used_s: of the attempts with known use, which held known_s."""

    value: str
    held_s: float = 0.0
    known_s: float = 0.0
    used_s: float = 0.0
    jobs: set[int] = field(default_factory=set)
    users: set[str] = field(default_factory=set)

    @property
    def efficiency(self) -> float | None:
        return min(1.0, self.used_s / self.known_s) if self.known_s else None

    @property
    def coverage(self) -> float | None:
        return self.known_s / self.held_s if self.held_s else None


def sums(
    attempts: Iterable[TaggedAttempt], since: datetime, until: datetime, now: datetime
) -> list[TagUse]:
    """By value, most GPU time first. Use is spread evenly over the time of an attempt."""
    by_value: dict[str, TagUse] = {}
    for attempt in attempts:
        ended = attempt.ended_at or now
        inside_s = (min(ended, until) - max(attempt.began_at, since)).total_seconds()
        if inside_s <= 0 and not (since <= attempt.began_at < until):
            continue
        use = by_value.setdefault(attempt.value, TagUse(attempt.value))
        use.jobs.add(attempt.job)
        use.users.add(attempt.owner)
        held_s = attempt.gpus * max(0.0, inside_s)
        use.held_s += held_s
        whole_s = (ended - attempt.began_at).total_seconds()
        if attempt.sm_s is not None and whole_s > 0:
            use.known_s += held_s
            use.used_s += attempt.sm_s * max(0.0, inside_s) / whole_s
    return sorted(by_value.values(), key=lambda use: (-use.held_s, use.value))
