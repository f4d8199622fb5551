"""Policy: waiting jobs as classes of identical requests, and their run times."""

from __future__ import annotations

import heapq
from bisect import insort
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from math import exp, log, sqrt
from statistics import median
from typing import Any

from msgspec import Struct, field

from scheduler.facts.jobs import CLASSES, Ends, QueuedJob, RunTime
from scheduler.facts.language_models import OWNER
from scheduler.facts.people import Window
from scheduler.facts.plans import RunningJob, Slot
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


# The expected run time of a job, from its limit or estimate and from earlier jobs.
#
# A time limit is only an upper bound; users choose it 2 to 10 times too long. The first known
# value counts: the run times of the owner's jobs of the same name; the estimate, scaled by the
# ratio of earlier jobs to their estimates; the limit, scaled by the used part of earlier limits;
# the run times of the owner's other jobs. Each is shrunk towards the values of all users and a
# prior, on a logarithmic scale, with the weight of PRIOR_JOBS jobs, so few observations change it
# little.
#
# Many runs of one program say how long that program runs, and nothing about the spread of others.
# So for a job of a new name, the spread counts with the number of known names.


# How many jobs the less specific knowledge counts as.
PRIOR_JOBS = 4.0
# With fewer runs of its name, and fewer other names, the run time of a job is a guess.
FEW = 3
# From the median to the 90th percentile of a normal distribution.
Z90 = 1.2816
SHORTEST_S = 1.0
# In a simulation.
SHORTEST = timedelta(seconds=2)
# The part that the n-th job of a GPU adds to the spread of their sum.
PARTS = tuple(sqrt(n + 1) - sqrt(n) for n in range(64))


class EndedJob(Struct, frozen=True, kw_only=True):
    """A job that ran to its own end or to its limit."""

    owner: str
    name: str
    took: timedelta
    limit: timedelta | None = None
    estimate: timedelta | None = None


class Spread(Struct, frozen=True):
    """Median and standard deviation of logarithms, and how many jobs they are of.

    kinds: how many different programs these jobs are, where another program is predicted.
    """

    middle: float
    sigma: float
    count: float = PRIOR_JOBS
    kinds: float = PRIOR_JOBS

    def towards(self, wider: Spread) -> Spread:
        """This knowledge, shrunk towards wider knowledge."""
        part = self.count / (self.count + PRIOR_JOBS)
        of_sigma = self.kinds / (self.kinds + PRIOR_JOBS)
        return Spread(
            part * self.middle + (1 - part) * wider.middle,
            of_sigma * self.sigma + (1 - of_sigma) * wider.sigma,
            self.count,
            self.kinds,
        )


# Nothing is known: 10 minutes, in nine of ten cases below 3 hours.
ANY = Spread(log(600), 2.2, kinds=0)
# Of a time limit jobs use about 40 %; of an estimate all.
OF_LIMIT = Spread(log(0.4), 0.7)
OF_ESTIMATE = Spread(0.0, 0.3)


class History(Struct, frozen=True):
    """Statistics of ended jobs, by owner ("" = all users). alike: by owner and job name."""

    alike: Mapping[tuple[str, str], Spread] = field(default_factory=dict)
    took: Mapping[str, Spread] = field(default_factory=dict)
    of_limit: Mapping[str, Spread] = field(default_factory=dict)
    of_estimate: Mapping[str, Spread] = field(default_factory=dict)


def history(ended: Iterable[EndedJob]) -> History:
    """Summarise ended jobs."""
    alike: dict[tuple[str, str], list[float]] = defaultdict(list)
    took: dict[str, list[float]] = defaultdict(list)
    programs: dict[str, set[tuple[str, str]]] = defaultdict(set)
    of_limit: dict[str, list[float]] = defaultdict(list)
    of_estimate: dict[str, list[float]] = defaultdict(list)
    for job in ended:
        value = log(max(SHORTEST_S, job.took.total_seconds()))
        alike[job.owner, job.name].append(value)
        for owner in (job.owner, ""):
            took[owner].append(value)
            programs[owner].add((job.owner, job.name))
            if job.limit:
                of_limit[owner].append(min(0.0, value - log(job.limit.total_seconds())))
            if job.estimate:
                of_estimate[owner].append(value - log(job.estimate.total_seconds()))
    return History(
        alike={key: _spread(values) for key, values in alike.items()},
        took=_shrunk(took, ANY, {owner: len(names) for owner, names in programs.items()}),
        of_limit=_shrunk(of_limit, OF_LIMIT),
        of_estimate=_shrunk(of_estimate, OF_ESTIMATE),
    )


def expected(
    owner: str,
    name: str,
    limit: timedelta | None,
    estimate: timedelta | None,
    learned: History,
) -> RunTime:
    """The run time that half of such jobs, and nine of ten, don't exceed; at most the limit."""
    if estimate:
        spread = _times(estimate, _of(learned.of_estimate, owner, OF_ESTIMATE))
    elif limit:
        spread = _times(limit, _of(learned.of_limit, owner, OF_LIMIT))
    else:
        spread = _of(learned.took, owner, ANY)
    alike = learned.alike.get((owner, name))
    if alike is not None:
        spread = alike.towards(spread)
    p50, p90 = exp(spread.middle), exp(spread.middle + Z90 * spread.sigma)
    most = limit.total_seconds() if limit else p90
    is_guess = not (limit or estimate) and spread.kinds < FEW
    return RunTime(timedelta(seconds=min(p50, most)), timedelta(seconds=min(p90, most)), is_guess)


def expected_end(started_at: datetime, run_time: RunTime | None, now: datetime) -> Ends | None:
    """When a running job ends, for every page, plan and forecast. None = no run time is known.

    run_time: by progress, history, estimate or limit (`execution.progress.policy.run_time`).
    """
    if run_time is None:
        return None
    elapsed = max(timedelta(), now - started_at)
    p50 = remaining(elapsed, run_time, late=False)
    p90 = remaining(elapsed, run_time, late=True)
    return Ends(now + p50, now + max(p50, p90))


def remaining(started_for: timedelta, run_time: RunTime, *, late: bool) -> timedelta:
    """Remaining time of a running job: p90 if `late`, else p50.

    After the median, half of the remaining jobs end in the first half of the time up to the 90th
    percentile. After that, the remaining time is a part of the elapsed time.
    """
    typical, longest = run_time.p50, run_time.p90
    if late:
        return longest - started_for if started_for < longest else started_for / 2
    if started_for < typical * 0.9:
        return typical - started_for
    if started_for < longest:
        return max((longest - started_for) / 3, typical - started_for)
    return started_for / 10


def end_of(job: RunningJob, now: datetime, *, late: bool) -> datetime | None:
    """When a running job ends in a simulation; None = unknown, or it is a model, which stays."""
    if job.owner == OWNER:
        return None
    if job.yields:
        return now + SHORTEST
    ends = job.ends
    if ends is None or ends.p50 <= now:
        usual = job.expected
        if usual is None and (typical := job.typical or job.lasts) is not None:
            usual = RunTime(typical, max(typical, job.lasts or typical))
        ends = expected_end(job.started_at, usual, now)
    if ends is None:
        return None
    return max(now + SHORTEST, ends.p90 if late else ends.p50)


def lasts(job: QueuedJob, before: int, *, late: bool) -> timedelta | None:
    """How long a job takes in a simulation that starts on a GPU after `before` others.

    Long run times seldom come together: the spread of a sum of n grows with the root of n. So the
    n-th job on a GPU adds only its part of that, unless its run time is a guess.
    """
    if job.owner == OWNER:
        return None
    expected = job.expected
    if expected is not None:
        typical, longest = expected.p50, expected.p90
    else:
        length = job.typical or job.lasts
        if length is None:
            return None
        typical, longest = length, job.lasts or length
    if not late or longest <= typical:
        return typical
    if expected is not None and expected.is_guess:
        return longest
    return typical + (longest - typical) * PARTS[min(before, len(PARTS) - 1)]


def _times(said: timedelta, ratio: Spread) -> Spread:
    return Spread(log(max(SHORTEST_S, said.total_seconds())) + ratio.middle, ratio.sigma)


def _of(spreads: Mapping[str, Spread], owner: str, prior: Spread) -> Spread:
    return spreads.get(owner) or spreads.get("") or prior


def _spread(values: list[float], kinds: int | None = None) -> Spread:
    middle = median(values)
    sigma = median(abs(value - middle) for value in values) * 1.4826
    return Spread(middle, sigma, len(values), len(values) if kinds is None else kinds)


def _shrunk(
    values: Mapping[str, list[float]], prior: Spread, kinds: Mapping[str, int] | None = None
) -> dict[str, Spread]:
    """kinds: how many programs the jobs of each owner are; None = as many as jobs."""
    if "" not in values:
        return {}
    spreads = {
        owner: _spread(sample, None if kinds is None else kinds[owner])
        for owner, sample in values.items()
    }
    of_all = spreads[""].towards(prior)
    of_each = {owner: spread.towards(of_all) for owner, spread in spreads.items() if owner}
    return of_each | {"": of_all}
