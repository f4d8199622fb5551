"""Policy: who is served first.

Priority 5 before 4, and so on. Inside a priority by weight: how far its owner is below the part of
the machine that they should have now (which falls with each job that the pass gives them), and how
long the job has waited. Then who came first; the id decides between equals.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from operator import attrgetter

from scheduler.jobs import QueuedJob, Requirement
from scheduler.plans import RunningJob, Slots

HOUR_S = 3600.0
# Parts of a GPU by which people can differ.
STEPS = 4
# Less is sooner; ids differ, so that the job and its line are never compared.
Turn = tuple[float, datetime, int, QueuedJob, Iterator[QueuedJob]]
_came = attrgetter("submitted_at", "id")


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderPolicy:
    """What counts inside a priority."""

    fair_weight: float = field(
        default=1.0,
        metadata={
            "label": "weight of the fair share",
            "help": "how much it counts that the owner has less of the machine than they should",
            "least": 0,
            "most": 100,
        },
    )
    age_weight: float = field(
        default=0.02,
        metadata={
            "label": "weight of the wait",
            "help": "0.02: a full wait outweighs a fiftieth of the machine",
            "least": 0,
            "most": 100,
        },
    )
    age_hours: float = field(
        default=24.0,
        metadata={
            "label": "full wait",
            "help": "waiting longer counts no more",
            "unit": "h",
            "least": 0.1,
            "most": 8760,
        },
    )
    overdue_hours: float = field(
        default=24.0,
        metadata={
            "label": "a large job is overdue",
            "help": "after this wait the oldest job that wants several GPUs, and whose owner has "
            "none as large, is first in its priority, whatever its owner has",
            "unit": "h",
            "least": 0.1,
            "most": 8760,
        },
    )


@dataclass(frozen=True, slots=True)
class Factor:
    """A part of what decides about a job's place: value 0..1, more is sooner."""

    name: str
    value: float
    weight: float
    text: str


class Shares:
    """How far each person is below the part of the machine that they should have, as it changes."""

    def __init__(self, slots: Slots, owners: Iterable[str]) -> None:
        """Who has no standing is due the same part as everybody, and has what their jobs hold."""
        self._totals = {gpu.gpu_uuid: gpu.total_bytes for gpu in slots.gpus}
        self._most_bytes = max((total for total in self._totals.values() if total), default=None)
        running = [(job.owner, job.requirement) for job in slots.running]
        names = sorted({*owners, *(owner for owner, _ in running), *slots.people})
        shared = max((len(one.capacity.gpu_uuids) for one in slots.people.values()), default=0)
        self._capacity = max(1, shared or len(slots.gpus))
        self._target = {name: 1 / len(names) for name in names}
        self._have = dict.fromkeys(names, 0.0)
        for owner, requirement in running:
            self._have[owner] += self.charge(requirement)
        for name, standing in slots.people.items():
            # In steps: what is measured wobbles, and the order must not with it.
            self._target[name] = standing.target
            self._have[name] = round(standing.charge * STEPS) / STEPS

    def charge(self, requirement: Requirement) -> float:
        """What a job takes, in GPUs: whole ones, or its part of their memory."""
        if requirement.exclusive or requirement.memory_bytes is None or not self._most_bytes:
            return float(requirement.gpus)
        return requirement.gpus * min(1.0, requirement.memory_bytes / self._most_bytes)

    def count(self, owner: str, requirement: Requirement) -> None:
        """The pass has given this to the owner."""
        self._have[owner] = self._have.get(owner, 0.0) + self.charge(requirement)

    def target(self, owner: str) -> float:
        return self._target.get(owner, 0.0)

    def have(self, owner: str) -> float:
        """The part of the machine that they have, 0..1 (more with work outside the machine's)."""
        return self._have.get(owner, 0.0) / self._capacity

    def deficit(self, owner: str) -> float:
        return self.target(owner) - self.have(owner)


def overdue(
    jobs: Iterable[QueuedJob], running: Iterable[RunningJob], policy: OrderPolicy, now: datetime
) -> dict[int, QueuedJob]:
    """By priority, the large job that has waited too long for its owner's share to matter.

    One at a time, and only for who has no job as large: so a flood of them is served by shares.
    """
    since = now - timedelta(hours=policy.overdue_hours)
    largest: dict[str, int] = {}
    for one in running:
        largest[one.owner] = max(largest.get(one.owner, 0), one.requirement.gpus)
    found: dict[int, QueuedJob] = {}
    for job in jobs:
        if job.submitted_at > since:
            continue
        gpus = job.requirement.gpus
        if gpus <= 1 or largest.get(job.owner, 0) >= gpus:
            continue
        first = found.get(job.priority)
        if first is None or _came(job) < _came(first):
            found[job.priority] = job
    return found


class Line:
    """Iterate to get the next job to be tried; tell `shares` what it got before the next.

    `passes`: whether there is nothing to be tried with a job; it is asked once for each. `ahead`:
    by priority, a job that is first there.
    """

    def __init__(
        self,
        jobs: Iterable[QueuedJob],
        shares: Shares,
        policy: OrderPolicy,
        now: datetime,
        passes: Callable[[QueuedJob], bool] = lambda _: False,
        ahead: Mapping[int, QueuedJob] | None = None,
    ) -> None:
        self._shares = shares
        self._passes = passes
        self._policy = policy
        self._now = now.timestamp()
        self._ahead = ahead or {}
        self._bands: dict[int, dict[str, list[QueuedJob]]] = {}
        for job in jobs:
            self._bands.setdefault(job.priority, {}).setdefault(job.owner, []).append(job)

    def __iter__(self) -> Iterator[QueuedJob]:
        for priority in sorted(self._bands, reverse=True):
            if priority in self._ahead:
                yield self._ahead[priority]
            yield from self._band(self._bands[priority])

    def _band(self, by_owner: Mapping[str, list[QueuedJob]]) -> Iterator[QueuedJob]:
        """Each person's jobs as they came; at each step the person whose turn it is."""
        lines = [iter(sorted(jobs, key=_came)) for jobs in by_owner.values()]
        heap = [turn for line in lines if (turn := self._next(line)) is not None]
        heapq.heapify(heap)
        while heap:
            *_, job, line = heap[0]
            yield job
            following = self._next(line)
            if following is None:
                heapq.heappop(heap)
            else:
                heapq.heapreplace(heap, following)

    def _next(self, line: Iterator[QueuedJob]) -> Turn | None:
        """A person's next job that can be tried."""
        passes, ahead = self._passes, self._ahead
        for job in line:
            if not passes(job) and (not ahead or job is not ahead.get(job.priority)):
                return (*self._turn(job), job, line)
        return None

    def _turn(self, job: QueuedJob) -> tuple[float, datetime, int]:
        policy = self._policy
        age = min(
            1.0, max(0.0, self._now - job.submitted_at.timestamp()) / (policy.age_hours * HOUR_S)
        )
        score = policy.fair_weight * self._shares.deficit(job.owner) + policy.age_weight * age
        return (-score, job.submitted_at, job.id)
