"""Policy: the order in which waiting jobs are placed.

Priority 5 comes before 4, and so on. Within a priority, a weighted sum decides: the fair-share
deficit of the owner, which decreases as the pass assigns them jobs, and the waiting time. Equal
scores are ordered by submission time, then by id.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from operator import attrgetter

from monitor.facts.formats import duration
from monitor.facts.thresholds import threshold
from scheduler.facts.jobs import PRIORITIES, QueuedJob, Requirement
from scheduler.facts.plans import RunningJob, Slots

HOUR_S = 3600.0
# Charges are rounded to this part of a GPU.
STEPS = 4
# A heap key: the smallest comes first. Ids differ, so jobs and iterators are never compared.
Turn = tuple[float, datetime, int, QueuedJob, Iterator[QueuedJob]]
_came = attrgetter("submitted_at", "id")


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderPolicy:
    """Order of waiting jobs within a priority."""

    # fmt: off
    fair_weight: float = threshold(1.0, "Fair-share weight", ge=0, le=100,
        help="Weight of the difference between a user's target share and usage.")
    age_weight: float = threshold(0.02, "Waiting-time weight", ge=0, le=100,
        help="At 0.02, a full wait outweighs 2 % of the GPUs.")
    age_hours: float = threshold(24.0, "Full wait", unit="h", ge=0.1, le=8760,
        help="A longer wait does not raise the priority further.")
    overdue_hours: float = threshold(24.0, "Large job overdue after", unit="h", ge=0.1, le=8760,
        help="The oldest overdue multi-GPU job comes first in its priority class, unless its "
             "owner already runs a job of that size.")
    # fmt: on


@dataclass(frozen=True, slots=True)
class Factor:
    """One factor of a job's place in the queue: value 0..1, a higher value comes first."""

    name: str
    value: float
    weight: float
    text: str


class Shares:
    """Fair-share deficit of each user, updated as the pass places jobs."""

    def __init__(self, slots: Slots, owners: Iterable[str]) -> None:
        """Users without an account get an equal target, and hold what their jobs hold."""
        self._totals = {gpu.gpu_uuid: gpu.total_bytes for gpu in slots.gpus}
        self._most_bytes = max((total for total in self._totals.values() if total), default=None)
        running = [(job.owner, job.requirement) for job in slots.running]
        names = sorted({*owners, *(owner for owner, _ in running), *slots.people})
        shared = max(
            (len(user_account.capacity.gpu_uuids) for user_account in slots.people.values()),
            default=0,
        )
        self._capacity = max(1, shared or len(slots.gpus))
        self._target = {name: 1 / len(names) for name in names}
        self._have = dict.fromkeys(names, 0.0)
        for owner, requirement in running:
            self._have[owner] += self.charge(requirement)
        for name, account in slots.people.items():
            # Rounded, so that measurement noise does not change the order.
            self._target[name] = account.target
            self._have[name] = round(account.charge * STEPS) / STEPS

    def charge(self, requirement: Requirement) -> float:
        """The charge of a job in GPUs: whole GPUs, or its part of their memory."""
        if requirement.exclusive or requirement.memory_bytes is None or not self._most_bytes:
            return float(requirement.gpus)
        return requirement.gpus * min(1.0, requirement.memory_bytes / self._most_bytes)

    def count(self, owner: str, requirement: Requirement) -> None:
        """Record that the pass has placed a job of the owner."""
        self._have[owner] = self._have.get(owner, 0.0) + self.charge(requirement)

    def target(self, owner: str) -> float:
        return self._target.get(owner, 0.0)

    def have(self, owner: str) -> float:
        """The part of the capacity that the user holds; above 1 with GPUs beyond the capacity."""
        return self._have.get(owner, 0.0) / self._capacity

    def deficit(self, owner: str) -> float:
        return self._target.get(owner, 0.0) - self._have.get(owner, 0.0) / self._capacity


def overdue(
    jobs: Iterable[QueuedJob], running: Iterable[RunningJob], policy: OrderPolicy, now: datetime
) -> dict[int, QueuedJob]:
    """The overdue multi-GPU job of each priority, which comes first regardless of shares.

    One at a time, and only if its owner runs no job of that size, so that many large jobs of one
    user are still ordered by shares.
    """
    since = now - timedelta(hours=policy.overdue_hours)
    largest: dict[str, int] = {}
    for running_job in running:
        gpus = running_job.requirement.gpus
        largest[running_job.owner] = max(largest.get(running_job.owner, 0), gpus)
    first_overdue: dict[int, QueuedJob] = {}
    for job in jobs:
        if job.submitted_at > since:
            continue
        gpus = job.requirement.gpus
        if gpus <= 1 or largest.get(job.owner, 0) >= gpus:
            continue
        first = first_overdue.get(job.priority)
        if first is None or _came(job) < _came(first):
            first_overdue[job.priority] = job
    return first_overdue


class ServiceOrder:
    """Iterates over jobs in the order of placement; update `shares` before the next.

    passes: whether a job need not be tried; called once for each job. ahead: the first job of a
    priority.
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
        # Read once: this is asked for each job.
        self._fair_weight, self._age_weight = policy.fair_weight, policy.age_weight
        self._age_s = policy.age_hours * HOUR_S
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
        """Jobs of one priority: those of a user by submission, users by score."""
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
        """A user's next job to try."""
        passes, ahead = self._passes, self._ahead
        for job in line:
            if not passes(job) and (not ahead or job is not ahead.get(job.priority)):
                return (*self._turn(job), job, line)
        return None

    def _turn(self, job: QueuedJob) -> tuple[float, datetime, int]:
        waited_s = self._now - job.submitted_at.timestamp()
        age = min(1.0, max(0.0, waited_s) / self._age_s)
        score = self._fair_weight * self._shares.deficit(job.owner) + self._age_weight * age
        return (-score, job.submitted_at, job.id)


def order_factors(
    job: QueuedJob, slots: Slots, owners: Iterable[str], policy: OrderPolicy, now: datetime
) -> tuple[Factor, ...]:
    """The factors of a waiting job's place. owners: of all waiting jobs.

    Priority comes first; the other factors are weighted within a priority.
    """
    shares = Shares(slots, owners)
    return (_priority(job), _fair(job, shares, policy), _age(job, policy, now))


def _priority(job: QueuedJob) -> Factor:
    word = PRIORITIES[job.priority]
    least, most = min(PRIORITIES), max(PRIORITIES)
    text = f"{job.priority} ({word}); {most} ({PRIORITIES[most]}) is served first"
    return Factor("priority", (job.priority - least) / (most - least), 1.0, text)


def _fair(job: QueuedJob, shares: Shares, policy: OrderPolicy) -> Factor:
    """0.5 = the user holds exactly the target share; above 0.5 = less than it."""
    have, target = 100 * shares.have(job.owner), 100 * shares.target(job.owner)
    value = min(1.0, max(0.0, 0.5 + shares.deficit(job.owner) / 2))
    text = (
        f"{job.owner} holds {have:.0f} % of the GPUs now; the fair-share target is {target:.0f} %"
    )
    return Factor("fair share", value, policy.fair_weight, text)


def _age(job: QueuedJob, policy: OrderPolicy, now: datetime) -> Factor:
    waited = max(timedelta(), now - job.submitted_at)
    most = timedelta(hours=policy.age_hours)
    counts = duration(most.total_seconds())
    text = f"it has waited {duration(waited.total_seconds())}; up to {counts} counts"
    return Factor("age", min(1.0, waited / most), policy.age_weight, text)
