"""Policy: waiting jobs as classes of identical requests, for simulations."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import lru_cache

from scheduler.facts.jobs import QueuedJob
from scheduler.facts.people import Window
from scheduler.limits.time_windows.policy import spans
from scheduler.queue.planner.order import Place, came
from scheduler.queue.planner.plan import Pass, RequestGroup

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

    boundaries: the times at which time windows begin, end, or make jobs leave.
    """

    def __init__(self, jobs: Sequence[QueuedJob], made: Pass) -> None:
        uuids = {placement.job_id: placement.gpu_uuids for placement in made.placements}
        self.placed = [(job, uuids[job.id]) for job in jobs if job.id in uuids]
        self.owners = {job.owner for job in jobs}
        waiting = [job for job in jobs if job.id not in uuids and not made.is_final(job)]
        self.ids = {job.id for job in waiting}
        self.held = [job for job in waiting if job.waits]
        apart = {job.id for job in made.ahead.values()} | set(made.beneficiaries)
        classes: dict[tuple[int, int | None], list[QueuedJob]] = defaultdict(list)
        for job in sorted(waiting, key=came):
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
