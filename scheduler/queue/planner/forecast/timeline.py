"""Policy: timelines of GPUs: when each GPU can take a job, given the lengths of jobs.

A job in a timeline starts no earlier than the jobs that were put into it before.
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from math import sqrt

from scheduler.facts.blockers import Blocker, Tier
from scheduler.facts.jobs import QueuedJob, Requirement, RunTime
from scheduler.facts.plans import PlanPolicy, RunningJob, Slot, Slots
from scheduler.queue.planner.forecast.run_times import expected_end
from scheduler.queue.planner.forecast.time_windows import HORIZON, WindowForecast
from scheduler.queue.planner.matching import needed_bytes, reject_code

MINUTE = timedelta(minutes=1)
Bars = Mapping[int, list[Blocker]]
# Predictions are rounded up so that they do not flicker: to 5 s when near, else to minutes.
NEAR, STEP_S = timedelta(minutes=15), 5
# The part that the n-th job of a lane adds to the spread of their sum.
PARTS = tuple(sqrt(n + 1) - sqrt(n) for n in range(64))
SHORTEST = timedelta(seconds=2)


class GpuTimeline:
    """The timeline of a GPU; its time never decreases.

    ends: (time, job) of the jobs with a known end, in order. held: memory reserved by each job.
    before: number of jobs that were put into it.
    """

    __slots__ = (
        "_alone", "_bare", "_first", "_free", "_suits", "at", "before", "ends", "held", "index",
        "total_bytes",
    )  # fmt: skip

    def __init__(self, slot: Slot, now: datetime) -> None:
        self.at = now
        self.index = slot.index
        self.total_bytes = slot.total_bytes
        self.ends: list[tuple[datetime, int]] = []
        self.before = len(slot.jobs)
        self.held = dict(zip(slot.jobs, slot.held_by_job, strict=True))
        self._bare = slot.without(slot.jobs)
        self._free = slot.free_bytes
        # The job that lets no other be there.
        self._alone = slot.jobs[0] if slot.jobs and (slot.exclusive or slot.undeclared) else None
        self._suits: dict[int, bool] = {}
        self._first: dict[int, datetime | None] = {}

    def first(self, kind: int, requirement: Requirement, policy: PlanPolicy) -> datetime | None:
        """When it could have such a job; None = it never can, as far as is known.

        `kind`: the number of this requirement, which is faster to look up.
        """
        try:
            return self._first[kind]
        except KeyError:
            start = self._first[kind] = self._look(kind, requirement, policy)
            return start

    def _look(self, kind: int, requirement: Requirement, policy: PlanPolicy) -> datetime | None:
        if kind not in self._suits:
            self._suits[kind] = reject_code(requirement, self._bare, policy) is None
        if not self._suits[kind]:
            return None
        wants = needed_bytes(requirement, self._bare, policy)
        shares = wants is not None and requirement.memory_bytes is not None
        shares = shares and not requirement.exclusive
        at, free, alone, jobs = self.at, self._free, self._alone, len(self.held)
        for end, job_id in (*self.ends, (None, 0)):
            fits = wants is None or (free is not None and free >= wants)
            if alone is None and fits and (shares or not jobs):
                return at
            if end is None:
                return None
            at, jobs = max(at, end), jobs - 1
            free = None if free is None else free + self.held[job_id]
            alone = None if alone == job_id else alone
        return None

    def take(self, job: QueuedJob, at: datetime, end: datetime | None) -> None:
        """Start the job, and remove jobs that have ended by then."""
        while self.ends and self.ends[0][0] <= at:
            self._leave(self.ends.pop(0)[1])
        self.at = max(self.at, at)
        self.before += 1
        wanted = job.requirement.memory_bytes
        self.held[job.id] = wanted or 0
        self._free = None if self._free is None else max(0, self._free - (wanted or 0))
        if job.requirement.exclusive or wanted is None:
            self._alone = job.id
        if end is not None:
            insort(self.ends, (end, job.id))
        self._first.clear()

    def _leave(self, job_id: int) -> None:
        back = self.held.pop(job_id)
        self._free = None if self._free is None else self._free + back
        self._alone = None if self._alone == job_id else self._alone


class GpuTimelines:
    """All lanes: with typical run times (p50), or with long ones (p90) if `late`.

    Long run times seldom come together: the spread of a sum of n grows with the root of n. So the
    n-th job in a lane adds only its part of that, unless its run time is a guess.
    """

    def __init__(
        self, slots: Slots, policy: PlanPolicy, now: datetime, ahead: WindowForecast, *, late: bool
    ) -> None:
        self._policy = policy
        self._ahead = ahead
        self._now = now
        self._late = late
        self._lanes = {gpu.gpu_uuid: GpuTimeline(_opened(gpu), now) for gpu in slots.gpus}
        self._opens = {gpu.gpu_uuid: at for gpu in slots.gpus if (at := _closed_until(gpu))}
        self._kinds: dict[Requirement, int] = {}
        # When each job ends, of which that is known.
        self.ends: dict[int, datetime] = {}
        # The GPUs of each waiting job that has got a place.
        self.places: dict[int, tuple[str, ...]] = {}
        # When a job ends: of all jobs, by owner, and of jobs without a GPU.
        self._ends: list[datetime] = []
        self._own: dict[str, list[datetime]] = {}
        self._cpu: list[datetime | None] = []
        self._cpu_jobs = 0
        for job in slots.running:
            self._begin(job)

    def _begin(self, job: RunningJob) -> None:
        end = self._end(job)
        self._note(job, end)
        if not job.gpu_uuids:
            self._cpu.append(end)
        for uuid in job.gpu_uuids:
            if end is not None and job.id in self._held_on(uuid):
                insort(self._lanes[uuid].ends, (end, job.id))

    def _held_on(self, uuid: str) -> Mapping[int, int]:
        """The jobs of the slot that are among the running jobs; a claim may be older."""
        return self._lanes[uuid].held if uuid in self._lanes else {}

    def _end(self, job: RunningJob) -> datetime | None:
        """When a running job ends; None = unknown."""
        run_time = _run_time(job)
        if job.yields:
            return self._now
        ends = job.ends
        if ends is None or ends.p50 <= self._now:
            ends = expected_end(job.started_at, run_time, self._now)
        if ends is None:
            return None
        return max(self._now + SHORTEST, ends.p90 if self._late else ends.p50)

    def _length(self, job: QueuedJob, before: int) -> timedelta | None:
        """How long a waiting job takes that starts after `before` others in its lane."""
        expected = job.expected
        if expected is not None:
            typical, longest = expected.p50, expected.p90
        else:
            length = job.typical or job.lasts
            if length is None:
                return None
            typical, longest = length, job.lasts or length
        if not self._late or longest <= typical:
            return typical
        if expected is not None and expected.is_guess:
            return longest
        return typical + (longest - typical) * PARTS[min(before, len(PARTS) - 1)]

    def _note(self, job: QueuedJob | RunningJob, end: datetime | None) -> None:
        if end is not None:
            self.ends[job.id] = end
            heapq.heappush(self._ends, end)
            heapq.heappush(self._own.setdefault(job.owner, []), end)

    def serve(self, job: QueuedJob, why: Sequence[Blocker]) -> datetime | None:
        """When it may start, rounded up; then it has its place."""
        least = self._least(job, why)
        if least is None:
            return None
        at = self._place(job, least, _bars(why))
        return None if at is None or at - self._now > HORIZON else self._rounded(at)

    def _rounded(self, at: datetime) -> datetime:
        if at - self._now > NEAR:
            floor = at.replace(second=0, microsecond=0)
            return floor if floor == at else floor + MINUTE
        over = at.second % STEP_S
        if not over and not at.microsecond:
            return at
        return at.replace(microsecond=0) + timedelta(seconds=STEP_S - over)

    def _least(self, job: QueuedJob, why: Sequence[Blocker]) -> datetime | None:
        """The earliest start, whatever is free; None = unknown."""
        least = self._now
        whole = [b for b in why if not _is_of_one_gpu(b) and b.tier is not Tier.CONTENTION]
        if any(b.until is None and b.tier in (Tier.PERSON, Tier.NOT_YET) for b in whole):
            return None
        # One end gives way for all of a kind: own limits, the machine's load.
        for kind in {b.code.is_own_limit for b in whole if b.until is None}:
            ends = self._own.get(job.owner, []) if kind else self._ends
            if not ends:
                return None
            least = max(least, heapq.heappop(ends))
        least = max([least, *(b.until for b in whole if b.until is not None)])
        single: dict[int | None, list[Blocker]] = {}
        for blocker in why:
            if _is_of_one_gpu(blocker):
                single.setdefault(blocker.gpu, []).append(blocker)
        if not single or any(all(map(_is_contention, each)) for each in single.values()):
            return least
        # No GPU is for it now: the first that opens.
        opening = [opens for each in single.values() if (opens := _opens(each)) is not None]
        return max(least, min(opening)) if opening else None

    def _place(self, job: QueuedJob, least: datetime, bars: Bars) -> datetime | None:
        if job.requirement.gpus == 0:
            return self._place_without_gpu(job, least)
        while True:
            chosen = sorted(self._firsts(job, least, bars))[: job.requirement.gpus]
            if len(chosen) < job.requirement.gpus:
                return None
            at = chosen[-1][0]
            # By then a time window may exclude the first of them.
            if at == chosen[0][0] or not self._ahead.is_any:
                self.take(job, tuple(uuid for _, _, uuid in chosen), at)
                return at
            least = at

    def _firsts(
        self, job: QueuedJob, least: datetime, bars: Bars
    ) -> Iterator[tuple[datetime, int, str]]:
        """When each GPU could take the job."""
        kind = self._kinds.setdefault(job.requirement, len(self._kinds))
        for uuid, lane in self._lanes.items():
            at = lane.first(kind, job.requirement, self._policy)
            for bar in bars.get(lane.index, ()) if at is not None else ():
                # The future load by others is unknown; a job of ours ends.
                opens = bar.until or (lane.ends[0][0] if lane.ends and bar.code.is_load else None)
                at = None if opens is None or at is None else max(at, opens)
            if at is not None:
                at = max(at, least, self._opens.get(uuid, at))
                at = self._ahead.opens(job, uuid, lane.total_bytes, at)
            if at is not None:
                yield at, lane.index, uuid

    def _place_without_gpu(self, job: QueuedJob, least: datetime) -> datetime | None:
        ends = sorted(end for end in self._cpu if end is not None)
        over = len(self._cpu) - self._policy.cpu_jobs
        if over >= len(ends):
            return None
        at = least if over < 0 else max(least, ends[over])
        if over >= 0:
            self._cpu.remove(ends[over])
        length = self._length(job, 1 + self._cpu_jobs // max(1, self._policy.cpu_jobs))
        self._cpu_jobs += 1
        self._cpu.append(None if length is None else at + length)
        if length is not None:
            self.ends[job.id] = at + length
        return at

    def take(self, job: QueuedJob, uuids: Sequence[str], at: datetime) -> None:
        """Start the job on these GPUs at this time."""
        self.places[job.id] = tuple(uuids)
        before = self._lanes[uuids[0]].before if uuids else 0
        length = self._length(job, before)
        end = None if length is None else at + length
        self._note(job, end)
        if not uuids:
            self._cpu.append(end)
        for uuid in uuids:
            self._lanes[uuid].take(job, at, end)


def _is_of_one_gpu(blocker: Blocker) -> bool:
    return blocker.gpu is not None or blocker.code.is_of_gpu


def _is_contention(blocker: Blocker) -> bool:
    """Whether it ends with jobs or load, which the timelines know better."""
    return blocker.tier is Tier.CONTENTION or blocker.code.is_load


def _opens(blockers: Iterable[Blocker]) -> datetime | None:
    """When the constraints of one GPU have ended, apart from contention; None = unknown."""
    ends = [blocker.until for blocker in blockers if not _is_contention(blocker)]
    known_ends = [end for end in ends if end is not None]
    return max(known_ends) if len(known_ends) == len(ends) else None


def _bars(why: Sequence[Blocker]) -> dict[int, list[Blocker]]:
    """Blockers that do not depend on free memory, by GPU index."""
    bars: dict[int, list[Blocker]] = {}
    for blocker in why:
        if blocker.tier is not Tier.CONTENTION and blocker.gpu is not None:
            bars.setdefault(blocker.gpu, []).append(blocker)
    return bars


def _opened(gpu: Slot) -> Slot:
    """Whether a blocker lasts: one with a known end does not prevent later starts."""

    open_later = all(blocker.until is not None for blocker in gpu.closed)
    return replace(gpu, closed=() if open_later else gpu.closed, ramping=None, reserved_for=None)


def _closed_until(gpu: Slot) -> datetime | None:
    return max((blocker.until for blocker in gpu.closed if blocker.until), default=None)


def _run_time(job: QueuedJob | RunningJob) -> RunTime | None:
    """None = unknown."""
    if job.expected is not None:
        return job.expected
    typical = job.typical or job.lasts
    return None if typical is None else RunTime(typical, max(typical, job.lasts or typical))
