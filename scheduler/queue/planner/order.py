"""Policy: the order in which waiting jobs are placed.

Jobs within their owners' shares come first. Priority 5 comes before 4, and so on. Within a
priority, a weighted sum decides: the fair-share deficit of the owner, which decreases as the pass
assigns them jobs, and the waiting time. Equal scores are ordered by submission time, then by id.

A share is a weight: a job above its owner's share is tried after all jobs within shares, and takes
any GPU that these cannot use. So no GPU stays idle because of a share.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from operator import attrgetter

from msgspec import Struct

from monitor.facts.formats import duration, part
from monitor.facts.thresholds import threshold
from scheduler.facts.blockers import Blocker
from scheduler.facts.jobs import CLASSES, PRIORITIES, PriorityClass, QueuedJob, Requirement
from scheduler.facts.people import UserAccount
from scheduler.facts.plans import RunningJob, Slots
from scheduler.limits.quotas.policy import quotas
from scheduler.limits.quotas.policy.charging import max_min

HOUR_S = 3600.0
# A smaller excess over a share, in GPUs, is no reason that a user could act on.
LEAST_EXCESS = 0.005
# Charges are rounded to this part of a GPU.
STEPS = 4
# Jobs within the part of a share for their class, within the whole share, above it.
WITHIN, WITHIN_RESERVED, ABOVE = 0, 1, 2
# A heap key: the smallest comes first. Ids differ, so the rest is never compared: the number of
# placements of the owner when it was computed, the job, and the jobs after it.
Place = tuple[int, int, bool, float, datetime, int]
Turn = tuple[int, int, bool, float, datetime, int, int, QueuedJob, Iterator[QueuedJob]]
came = attrgetter("submitted_at", "id")


# A longer wait does not raise the priority further.
FULL_WAIT = timedelta(hours=24)
# The oldest multi-GPU job that has waited this long comes first in its priority, unless its owner
# already runs a job of that size.
OVERDUE_AFTER = timedelta(hours=24)


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderPolicy:
    """Order of waiting jobs within a priority."""

    # fmt: off
    age_weight: float = threshold(0.02, "Waiting-time weight", ge=0, le=100,
        help="At 0.02, a wait of 24 h outweighs 2 % of the GPUs between a user's target share and "
             "usage. A longer wait does not count for more.")
    # fmt: on


class Factor(Struct, frozen=True):
    """One factor of a job's place in the queue: value 0..1, a higher value comes first."""

    name: str
    value: float
    weight: float
    text: str


class Shares:
    """Fair-share deficit of each user, updated as the pass places jobs."""

    def __init__(
        self,
        slots: Slots,
        owners: Iterable[str],
        wanted: Mapping[str, float] | None = None,
        *,
        first_job_free: bool = True,
    ) -> None:
        """Users without an account get an equal target, and hold what their jobs hold.

        wanted: GPUs that each user's waiting jobs could take here. What a user cannot use of the
        target is divided among the others.
        """
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
        self._people = slots.people
        for name, account in slots.people.items():
            self._target[name] = account.target
            # Rounded, so that measurement noise does not change the order.
            self._have[name] = round(account.charge * STEPS) / STEPS
        if wanted is not None:
            self._target = self._redistributed(wanted)
        # Less what rounding to whole GPUs owes the user.
        self._counted = dict(self._have)
        # GPUs of a share: for jobs that are not user-initiated, and in all. Only of users with one.
        self._most: dict[str, tuple[float, float]] = {}
        self._starts_free: set[str] = set()
        for name, account in slots.people.items():
            self._counted[name] -= account.owed
            if account.quota.share_pct is not None:
                most = self._target[name] * self._capacity
                self._most[name] = (most * quotas.for_normal_jobs(account.quota), most)
                if first_job_free and account.gpus == 0:
                    self._starts_free.add(name)
        self._above: dict[tuple[str, PriorityClass, float], Blocker | None] = {}
        # How often each user was served in this pass.
        self.served = dict.fromkeys(self._have, 0)

    def _redistributed(self, wanted: Mapping[str, float]) -> dict[str, float]:
        demands = {name: have + wanted.get(name, 0.0) for name, have in self._have.items()}
        for name, account in self._people.items():
            demands[name] = quotas.demand(account, wanted.get(name, 0.0))
        return max_min(
            self._target, {name: gpus / self._capacity for name, gpus in demands.items()}
        )

    def charge(self, requirement: Requirement) -> float:
        """The charge of a job in GPUs: whole GPUs, or its part of their memory."""
        if requirement.exclusive or requirement.memory_bytes is None or not self._most_bytes:
            return float(requirement.gpus)
        return requirement.gpus * min(1.0, requirement.memory_bytes / self._most_bytes)

    def count(self, owner: str, requirement: Requirement) -> None:
        """Record that the pass has placed a job of the owner."""
        part = self.charge(requirement)
        self._have[owner] = self._have.get(owner, 0.0) + part
        self._counted[owner] = self._counted.get(owner, 0.0) + part
        self.served[owner] = self.served.get(owner, 0) + 1
        if requirement.gpus:
            self._starts_free.discard(owner)

    def release(self, owner: str, requirement: Requirement) -> None:
        """Record that a job of the owner has ended."""
        part = self.charge(requirement)
        self._have[owner] = max(0.0, self._have.get(owner, 0.0) - part)
        self._counted[owner] = self._counted.get(owner, 0.0) - part
        self.served[owner] = self.served.get(owner, 0) + 1

    def target(self, owner: str) -> float:
        return self._target.get(owner, 0.0)

    def deficit(self, owner: str) -> float:
        return self._target.get(owner, 0.0) - self._counted.get(owner, 0.0) / self._capacity

    def level(self, owner: str, priority: int, requirement: Requirement) -> int:
        """WITHIN, WITHIN_RESERVED or ABOVE. A user without a share in the quota is never above.

        A job is within the share if its owner holds less, and exceeds it by less than a GPU or is
        the owner's first.
        """
        limits = self._most.get(owner)
        if limits is None or not requirement.gpus:
            return WITHIN
        normal, whole = limits
        counted = self._counted[owner] + quotas.SLACK
        if requirement.gpus > 1 and owner not in self._starts_free:
            counted += max(0.0, self.charge(requirement) - 1)
        if counted < normal:
            return WITHIN
        if counted >= whole:
            return ABOVE
        is_urgent = CLASSES[priority] is PriorityClass.USER_INITIATED
        return WITHIN if is_urgent else WITHIN_RESERVED

    def above(
        self, owner: str, priority: int, requirement: Requirement, others: Collection[str]
    ) -> Blocker | None:
        """The blocker of a job that would exceed the target share; others: users who wait too.

        After the pass: it is computed once for each class and size of jobs.
        """
        limits = self._most.get(owner)
        is_alone = len(others) <= (owner in others)
        if limits is None or is_alone or owner in self._starts_free:
            return None
        key = owner, CLASSES[priority], self.charge(requirement)
        if key not in self._above:
            self._above[key] = self._exceeds(*key)
        return self._above[key]

    def _exceeds(self, owner: str, urgency: PriorityClass, wants: float) -> Blocker | None:
        normal, whole = self._most[owner]
        most = whole if urgency is PriorityClass.USER_INITIATED else normal
        if self._have[owner] + wants <= most + LEAST_EXCESS:
            return None
        return quotas.above_share(self._people[owner], urgency, self._have[owner], wants, most)


def overdue(
    jobs: Iterable[QueuedJob], running: Iterable[RunningJob], now: datetime
) -> dict[int, QueuedJob]:
    """The overdue multi-GPU job of each priority, which comes first regardless of shares.

    One at a time, and only if its owner runs no job of that size, so that many large jobs of one
    user are still ordered by shares.
    """
    since = now - OVERDUE_AFTER
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
        if first is None or came(job) < came(first):
            first_overdue[job.priority] = job
    return first_overdue


class Places:
    """The place of each job in the service order; the smallest is served first.

    ahead: the first job of a priority, within the share in any case.
    """

    def __init__(
        self,
        shares: Shares,
        policy: OrderPolicy,
        now: datetime,
        ahead: Mapping[int, QueuedJob] | None = None,
    ) -> None:
        self._shares = shares
        # Read once: this is asked for each job.
        self._age_weight = policy.age_weight
        self._age_s = FULL_WAIT.total_seconds()
        self._now = now.timestamp()
        self.ahead = {job.id for job in (ahead or {}).values()}

    def of(self, job: QueuedJob) -> Place:
        shares, owner, is_ahead = self._shares, job.owner, job.id in self.ahead
        waited_s = self._now - job.submitted_at.timestamp()
        age = min(1.0, max(0.0, waited_s) / self._age_s)
        score = shares.deficit(owner) + self._age_weight * age
        return (
            WITHIN if is_ahead else shares.level(owner, job.priority, job.requirement),
            -job.priority,
            not is_ahead,
            -score,
            job.submitted_at,
            job.id,
        )


class ServiceOrder:
    """Iterates over jobs in the order of placement; update `shares` before the next.

    passes: whether a job need not be tried; called once for each job. ahead: as of Places.
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
        self._places = Places(shares, policy, now, ahead)
        self._ahead = self._places.ahead
        # Jobs whose turns differ only by their submission: a large job may be above the share of
        # its owner while a small one is within.
        self._lines: dict[tuple[int, str, int], list[QueuedJob]] = {}
        for job in jobs:
            key = (job.priority, job.owner, job.requirement.gpus)
            line = self._lines.get(key)
            if line is None:
                self._lines[key] = [job]
            else:
                line.append(job)

    def __iter__(self) -> Iterator[QueuedJob]:
        rank = self._rank if self._ahead else came
        lines = [iter(sorted(jobs, key=rank)) for jobs in self._lines.values()]
        heap = [turn for line in lines if (turn := self._next(line)) is not None]
        heapq.heapify(heap)
        served = self._shares.served
        while heap:
            *_, mark, job, line = heap[0]
            if mark != served.get(job.owner):
                # The owner was served since. A turn only gets later.
                heapq.heapreplace(heap, self._turn(job, line))
                continue
            yield job
            following = self._next(line)
            if following is None:
                heapq.heappop(heap)
            else:
                heapq.heapreplace(heap, following)

    def _rank(self, job: QueuedJob) -> tuple[bool, datetime, int]:
        return (job.id not in self._ahead, job.submitted_at, job.id)

    def _next(self, line: Iterator[QueuedJob]) -> Turn | None:
        """The next job of a line to try."""
        passes = self._passes
        for job in line:
            if not passes(job):
                return self._turn(job, line)
        return None

    def _turn(self, job: QueuedJob, line: Iterator[QueuedJob]) -> Turn:
        return (*self._places.of(job), self._shares.served.get(job.owner, 0), job, line)


def order_factors(
    job: QueuedJob, slots: Slots, owners: Iterable[str], policy: OrderPolicy, now: datetime
) -> tuple[Factor, ...]:
    """The factors of a waiting job's place. owners: of all waiting jobs.

    Priority comes first; the other factors are weighted within a priority.
    """
    account = slots.people.get(job.owner)
    fair = () if account is None else (_fair(job, account, Shares(slots, owners)),)
    return (_priority(job), *fair, _age(job, policy, now))


def _priority(job: QueuedJob) -> Factor:
    word = PRIORITIES[job.priority]
    least, most = min(PRIORITIES), max(PRIORITIES)
    text = f"{job.priority} ({word}); {most} ({PRIORITIES[most]}) is served first"
    return Factor("priority", (job.priority - least) / (most - least), 1.0, text)


def _fair(job: QueuedJob, account: UserAccount, shares: Shares) -> Factor:
    """0.5 = the user holds exactly the target share; above 0.5 = less than it."""
    value = min(1.0, max(0.0, 0.5 + shares.deficit(job.owner) / 2))
    text = (
        f"{job.owner} holds {part(account.use)} of the GPUs now; "
        f"the fair-share target is {part(account.target)}"
    )
    return Factor("fair share", value, 1.0, text)


def _age(job: QueuedJob, policy: OrderPolicy, now: datetime) -> Factor:
    waited = max(timedelta(), now - job.submitted_at)
    counts = duration(FULL_WAIT.total_seconds())
    text = f"it has waited {duration(waited.total_seconds())}; up to {counts} counts"
    return Factor("age", min(1.0, waited / FULL_WAIT), policy.age_weight, text)
