"""Policy: waiting jobs as classes of identical requests, for simulations."""

from __future__ import annotations

import heapq
from bisect import insort
from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any

from scheduler.facts.jobs import CLASSES, QueuedJob
from scheduler.facts.people import Window
from scheduler.facts.plans import Slot
from scheduler.limits.time_windows.policy import spans
from scheduler.queue.planner.gates import PassState
from scheduler.queue.planner.matching import reject_code
from scheduler.queue.planner.order import Place, Places, Shares, came
from scheduler.queue.planner.plan import GpuPool, Pass, RequestGroup, RequestGroups

# Nothing is predicted beyond this time.
HORIZON = timedelta(days=60)


class Kind:
    """Classes that need the same of GPUs. heap: their entries, which may be outdated.

    is_open: a GPU may take such a job. is_hopeless: not even on empty GPUs. is_shut: time windows
    close all GPUs to it until the next one begins or ends.
    """

    __slots__ = ("group", "heap", "is_hopeless", "is_open", "is_shut")

    def __init__(self, group: RequestGroup) -> None:
        self.group = group
        self.heap: list[Entry] = []
        self.is_open = True
        self.is_hopeless = False
        self.is_shut = False


class JobClass:
    """Waiting jobs with identical requests, in order of submission."""

    __slots__ = ("group", "is_parked", "jobs", "kind", "number", "version")

    def __init__(self, group: RequestGroup, kind: Kind, number: int) -> None:
        self.group = group
        self.kind = kind
        self.number = number
        self.jobs: list[QueuedJob] = []
        self.version = 0
        self.is_parked = False


# The place of a class: of its first job, its number, its version and how often its owner had been
# served when it was computed. Numbers differ, so the class is never compared.
Entry = tuple[Place, int, int, int, JobClass]


class Queue:
    """The jobs at the beginning of simulations: placed, waiting by class, held by own blockers.

    ids, scripts: of the jobs that wait, and how many of them need GPUs, without those that are
    coming.
    boundaries: the times at which time windows begin, end, or make jobs leave.
    """

    def __init__(self, jobs: Sequence[QueuedJob], made: Pass) -> None:
        uuids = {placement.job_id: placement.gpu_uuids for placement in made.placements}
        self.placed = [(job, uuids[job.id]) for job in jobs if job.id in uuids]
        self.owners = {job.owner for job in jobs}
        waiting = [job for job in jobs if job.id not in uuids and not made.is_final(job)]
        self.ids = {job.id for job in waiting}
        self.scripts = sum(bool(job.requirement.gpus) for job in waiting)
        self.held = [job for job in waiting if job.waits]
        apart = {job.id for job in made.ahead.values()} | set(made.beneficiaries)
        classes: dict[tuple[int, int | None], list[QueuedJob]] = defaultdict(list)
        for job in (*sorted(waiting, key=came), *made.state.slots.coming):
            if not job.waits:
                own = job.id if job.id in apart else None
                classes[id(made.groups.of(job)), own].append(job)
        self.classes = list(classes.values())
        slots, policy = made.state.slots, made.state.rules.windows
        early = timedelta(minutes=policy.yield_before_minutes)
        hour = made.state.now.replace(minute=0, second=0, microsecond=0)
        times = {at for window in slots.windows for at in _boundaries(window, hour)}
        self.boundaries = sorted(times | {at - early for at in times})


@lru_cache(maxsize=256)
def _boundaries(window: Window, since: datetime) -> tuple[datetime, ...]:
    """The starts and ends of a time window up to the horizon."""
    occurrences = spans(window, since, since + HORIZON)
    return tuple(at for span in occurrences for at in (span.start, span.end))


class WaitingJobs:
    """The waiting jobs of a simulation, as classes in order of service.

    Classes with the same need of GPUs are one kind. A kind that finds no GPU is not tried again
    until a GPU that could take it changes. gpu_jobs: waiting GPU jobs by owner.
    """

    def __init__(
        self,
        groups: RequestGroups,
        state: PassState,
        pool: GpuPool,
        shares: Shares,
        places: Places,
    ) -> None:
        self.places = places
        self.kinds: dict[Any, Kind] = {}
        # Kinds with the same request.
        self.alike: dict[int, list[Kind]] = defaultdict(list)
        # By group; a job that is overdue, or for which a GPU was freed, has a class of its own.
        self.classes: dict[tuple[int, int | None], JobClass] = {}
        self.of_owner: dict[str, list[JobClass]] = defaultdict(list)
        self.gpu_jobs: dict[str, int] = defaultdict(int)
        self._groups, self._state, self._pool, self._shares = groups, state, pool, shares
        # Classes that the gates refuse, until something ends.
        self._parked: dict[str, list[JobClass]] = defaultdict(list)

    def __iter__(self) -> Iterator[JobClass]:
        return iter(self.classes.values())

    def add(self, job: QueuedJob) -> None:
        job_class = self._class_of(job)
        insort(job_class.jobs, job, key=came)
        self.gpu_jobs[job.owner] += bool(job.requirement.gpus)
        if job_class.jobs[0] is job:
            self.place(job_class)

    def add_all(self, jobs: Sequence[QueuedJob]) -> None:
        """Jobs of one class, in order, at the beginning."""
        first = jobs[0]
        job_class = self._class_of(first)
        job_class.jobs = list(jobs)
        self.gpu_jobs[first.owner] += len(jobs) * bool(first.requirement.gpus)
        self.place(job_class)

    def _class_of(self, job: QueuedJob) -> JobClass:
        group = self._groups.of(job)
        is_kept_for = job.id in self._pool.beneficiaries
        key = (id(group), job.id if is_kept_for or job.id in self.places.ahead else None)
        job_class = self.classes.get(key)
        if job_class is None:
            kind = self._kind_of(group, job.id if is_kept_for else None)
            job_class = self.classes[key] = JobClass(group, kind, len(self.classes))
            self.of_owner[job.owner].append(job_class)
        return job_class

    def set_apart(self, job: QueuedJob, job_class: JobClass) -> None:
        """It leaves the class of jobs like it, as its place or its GPUs are not theirs."""
        job_class.jobs.remove(job)
        self.place(job_class)
        self.gpu_jobs[job.owner] -= bool(job.requirement.gpus)
        self.add(job)

    def _kind_of(self, group: RequestGroup, kept_for: int | None) -> Kind:
        """kept_for: the job that has GPUs which others can't take."""
        request, state = group.request, self._state
        owner = request.owner if state.reduced or state.slots.windows else None
        urgency = CLASSES[request.priority]
        key = (group.kind, urgency, request.lasts, owner, request.preemptible, kept_for)
        kind = self.kinds.get(key)
        if kind is None:
            kind = self.kinds[key] = Kind(group)
            self.alike[group.kind].append(kind)
            kind.is_open = self.fits(kind, self._pool.gpus)
        return kind

    def place(self, job_class: JobClass) -> None:
        """Put the class in the order of its kind, by its first job."""
        job_class.version += 1
        if job_class.jobs and not job_class.is_parked:
            heapq.heappush(job_class.kind.heap, self._entry(job_class))

    def _entry(self, job_class: JobClass) -> Entry:
        job = job_class.jobs[0]
        mark = self._shares.served.get(job.owner, 0)
        return (self.places.of(job), job_class.number, job_class.version, mark, job_class)

    def first(self, kind: Kind) -> Entry | None:
        """The first class of a kind that is not parked."""
        heap, served = kind.heap, self._shares.served
        while heap:
            _, _, version, mark, job_class = entry = heap[0]
            if version != job_class.version:
                heapq.heappop(heap)
            elif mark != served.get(job_class.group.request.owner, 0):
                # The owner was served since, which only makes places later.
                heapq.heapreplace(heap, self._entry(job_class))
            else:
                return entry
        return None

    def park(self, job_class: JobClass) -> None:
        job_class.is_parked = True
        job_class.version += 1
        self._parked[job_class.group.request.owner].append(job_class)

    def unpark(self, owner: str | None = None) -> None:
        """Try again what the gates refused."""
        for name in list(self._parked) if owner is None else [owner]:
            for job_class in self._parked.pop(name, ()):
                job_class.is_parked = False
                self.place(job_class)

    def fits(self, kind: Kind, gpus: Sequence[Slot]) -> bool:
        """Whether one of these GPUs may take a job of the kind, or all GPUs together."""
        wanted, policy = kind.group.request.requirement, self._state.policy
        if wanted.gpus == 0:
            return True
        missing = wanted.gpus
        for gpu in gpus if missing == 1 else self._pool.gpus:
            if gpu.exclusive or gpu.undeclared:
                continue
            if reject_code(wanted, gpu, policy, gpu.reserved_for) is None:
                missing -= 1
                if missing == 0:
                    return True
        return False

    def open_for(self, gpus: Sequence[Slot]) -> None:
        """Try again what may fit on these GPUs."""
        for alike in self.alike.values():
            closed = [kind for kind in alike if not (kind.is_open or kind.is_shut) and kind.heap]
            if closed and self.fits(closed[0], gpus):
                for kind in closed:
                    kind.is_open = True

    def tried(self) -> Iterator[tuple[Place, JobClass]]:
        """The first class of all kinds that a GPU may take, again and again."""
        heads = [
            (entry, number, kind)
            for number, kind in enumerate(self.kinds.values())
            if kind.is_open and (entry := self.first(kind)) is not None
        ]
        heapq.heapify(heads)
        while heads:
            entry, number, kind = heads[0]
            following = self.first(kind) if kind.is_open else None
            if following is entry:
                yield entry[0], entry[-1]
                following = self.first(kind) if kind.is_open else None
            if following is None:
                heapq.heappop(heads)
            else:
                heapq.heapreplace(heads, (following, number, kind))
