"""Policy: the GPUs as time goes on: when each can have a job, given how long jobs last.

A lane is a GPU that only goes forward: what is put into it starts no earlier than what was before.
"""

from __future__ import annotations

import heapq
import re
from bisect import insort
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from scheduler.blockers import Blocker, Tier
from scheduler.jobs import QueuedJob, Requirement
from scheduler.plans import PlanPolicy, RunningJob, Slot, Slots
from scheduler.policy.ahead import HORIZON, Ahead
from scheduler.policy.placement import held_bytes, left
from scheduler.policy.refusing import verdict

MINUTE = timedelta(minutes=1)
OWN_LIMITS = frozenset({"UserMaxGpus", "UserMaxJobs", "UserMaxMemory", "ShareExceeded"})
# Reasons of single GPUs, which say nothing about the others.
ONE_GPU = frozenset(
    {
        "GpuLocked",
        "GpuMemory",
        "GpuPaused",
        "GpuQuarantined",
        "GpuTaken",
        "GpuUnhealthy",
        "GpuUnsuitable",
        "MemoryUnknown",
        "OwnerPresent",
        "Ramping",
        "ReservedFor",
    }
)
# What keeps jobs off a GPU that has room for them.
LOAD = frozenset({"Pressure", "UtilTarget"})
Bars = Mapping[int, Blocker]
ONE = re.compile(r"GPU (\d+)")
Length = Callable[[QueuedJob | RunningJob], timedelta | None]


class Lane:
    """A GPU as time goes on: it only goes forward.

    `ends`: (when, job) of the jobs whose end is known, in order; `held`: what each job on it keeps.
    """

    __slots__ = (
        "_alone", "_bare", "_first", "_free", "_suits", "at", "ends", "held", "index", "total_bytes"
    )  # fmt: skip

    def __init__(self, slot: Slot, now: datetime) -> None:
        self.at = now
        self.index = slot.index
        self.total_bytes = slot.total_bytes
        self.ends: list[tuple[datetime, int]] = []
        self.held = dict(zip(slot.jobs, held_bytes(slot), strict=True))
        self._bare = left(slot, set(slot.jobs))
        self._free = slot.free_bytes
        # The job that lets no other be there.
        self._alone = slot.jobs[0] if slot.jobs and (slot.exclusive or slot.undeclared) else None
        self._suits: dict[Requirement, bool] = {}
        self._first: dict[Requirement, datetime | None] = {}

    def first(self, requirement: Requirement, policy: PlanPolicy) -> datetime | None:
        """When it could have such a job; None = it never can, as far as is known."""
        if requirement not in self._first:
            self._first[requirement] = self._look(requirement, policy)
        return self._first[requirement]

    def _look(self, requirement: Requirement, policy: PlanPolicy) -> datetime | None:
        if requirement not in self._suits:
            self._suits[requirement] = verdict(requirement, self._bare, policy) is None
        if not self._suits[requirement]:
            return None
        wants = _wants(requirement, policy)
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
        """The job starts then, and those that have ended are gone."""
        while self.ends and self.ends[0][0] <= at:
            self._leave(self.ends.pop(0)[1])
        self.at = max(self.at, at)
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


def _wants(requirement: Requirement, policy: PlanPolicy) -> int | None:
    """The memory that must be free; None = whatever there is."""
    if requirement.memory_bytes is None and not requirement.exclusive:
        return policy.undeclared_bytes
    return requirement.memory_bytes


class Future:
    """All lanes, with one idea of how long jobs last."""

    def __init__(
        self, slots: Slots, policy: PlanPolicy, now: datetime, length: Length, ahead: Ahead
    ) -> None:
        self._policy = policy
        self._ahead = ahead
        self._now = now
        self._length = length
        self._lanes = {gpu.gpu_uuid: Lane(_opened(gpu), now) for gpu in slots.gpus}
        self._opens = {gpu.gpu_uuid: at for gpu in slots.gpus if (at := _closed_until(gpu))}
        # When each job ends, of which that is known.
        self.ends: dict[int, datetime] = {}
        # When a job ends: everyone's, by owner, those without a GPU.
        self._ends: list[datetime] = []
        self._own: dict[str, list[datetime]] = {}
        self._cpu: list[datetime | None] = []
        for job in slots.running:
            self._begin(job)

    def _begin(self, job: RunningJob) -> None:
        length = self._length(job)
        end = None if length is None else self._still(job.started_at + length, job.started_at)
        self._note(job, end)
        if not job.gpu_uuids:
            self._cpu.append(end)
        for uuid in job.gpu_uuids:
            if end is not None and job.id in self._held_on(uuid):
                insort(self._lanes[uuid].ends, (end, job.id))

    def _held_on(self, uuid: str) -> Mapping[int, int]:
        """The jobs that the readings know there; a claim may be older than they are."""
        return self._lanes[uuid].held if uuid in self._lanes else {}

    def _still(self, end: datetime, started: datetime) -> datetime:
        """One that lasts longer than expected goes on for a tenth of what it has taken."""
        return end if end > self._now else self._now + max(MINUTE, (self._now - started) / 10)

    def _note(self, job: QueuedJob | RunningJob, end: datetime | None) -> None:
        if end is not None:
            self.ends[job.id] = end
            heapq.heappush(self._ends, end)
            heapq.heappush(self._own.setdefault(job.owner, []), end)

    def serve(self, job: QueuedJob, why: Sequence[Blocker]) -> datetime | None:
        """When it may start, rounded up to a minute; then it has its place."""
        least = self._least(job, why)
        if least is None:
            return None
        at = self._place(job, least, _bars(why))
        return None if at is None or at - self._now > HORIZON else _rounded(at)

    def _least(self, job: QueuedJob, why: Sequence[Blocker]) -> datetime | None:
        """Before this it can't start, whatever is free; None = nobody knows."""
        least = self._now
        whole = [b for b in why if not _is_of_one_gpu(b) and b.tier is not Tier.CONTENTION]
        if any(b.until is None and b.tier in (Tier.PERSON, Tier.NOT_YET) for b in whole):
            return None
        # One end gives way for all of a kind: own limits, the machine's load.
        for kind in {b.code in OWN_LIMITS for b in whole if b.until is None}:
            ends = self._own.get(job.owner, []) if kind else self._ends
            if not ends:
                return None
            least = max(least, heapq.heappop(ends))
        least = max([least, *(b.until for b in whole if b.until is not None)])
        single = [blocker for blocker in why if _is_of_one_gpu(blocker)]
        if not single or any(b.tier is Tier.CONTENTION or b.code in LOAD for b in single):
            return least
        # No GPU is for it now: the first that opens.
        opening = [blocker.until for blocker in single if blocker.until is not None]
        return max(least, min(opening)) if opening else None

    def _place(self, job: QueuedJob, least: datetime, bars: Bars) -> datetime | None:
        if job.requirement.gpus == 0:
            return self._place_without_gpu(job, least)
        while True:
            chosen = sorted(self._firsts(job, least, bars))[: job.requirement.gpus]
            if len(chosen) < job.requirement.gpus:
                return None
            at = chosen[-1][0]
            # By then an agreed time may keep it off the first of them.
            if at == chosen[0][0] or not self._ahead.is_any:
                self.take(job, tuple(uuid for _, _, uuid in chosen), at)
                return at
            least = at

    def _firsts(
        self, job: QueuedJob, least: datetime, bars: Bars
    ) -> Iterator[tuple[datetime, int, str]]:
        """When each GPU could have it."""
        for uuid, lane in self._lanes.items():
            at = lane.first(job.requirement, self._policy)
            bar = bars.get(lane.index)
            if at is not None and bar is not None:
                # How busy others keep it nobody can tell; of ours one ends.
                opens = bar.until or (lane.ends[0][0] if lane.ends and bar.code in LOAD else None)
                at = None if opens is None else max(at, opens)
            if at is not None:
                at = max(at, least, self._opens.get(uuid, at))
                at = self._ahead.opens(job, uuid, lane.total_bytes, at)
            if at is not None:
                yield at, lane.index, uuid

    def _place_without_gpu(self, job: QueuedJob, least: datetime) -> datetime | None:
        known = sorted(end for end in self._cpu if end is not None)
        over = len(self._cpu) - self._policy.cpu_jobs
        if over >= len(known):
            return None
        at = least if over < 0 else max(least, known[over])
        if over >= 0:
            self._cpu.remove(known[over])
        length = self._length(job)
        self._cpu.append(None if length is None else at + length)
        if length is not None:
            self.ends[job.id] = at + length
        return at

    def take(self, job: QueuedJob, uuids: Sequence[str], at: datetime) -> None:
        """The job starts there and then."""
        length = self._length(job)
        end = None if length is None else at + length
        self._note(job, end)
        if not uuids:
            self._cpu.append(end)
        for uuid in uuids:
            self._lanes[uuid].take(job, at, end)


def _is_of_one_gpu(blocker: Blocker) -> bool:
    return blocker.code in ONE_GPU or (blocker.available or "").startswith("GPU ")


def _bars(why: Sequence[Blocker]) -> dict[int, Blocker]:
    """By its number, what keeps the job off a GPU whatever room there is."""
    return {
        int(found[1]): blocker
        for blocker in why
        if blocker.tier is not Tier.CONTENTION and (found := ONE.fullmatch(blocker.available or ""))
    }


def _opened(gpu: Slot) -> Slot:
    """What closes a GPU for a known time is no reason against it later."""

    open_later = all(blocker.until is not None for blocker in gpu.closed)
    return replace(gpu, closed=() if open_later else gpu.closed, ramping=None, kept_for=None)


def _closed_until(gpu: Slot) -> datetime | None:
    return max((blocker.until for blocker in gpu.closed if blocker.until), default=None)


def _rounded(at: datetime) -> datetime:
    floor = at.replace(second=0, microsecond=0)
    return floor if floor == at else floor + MINUTE
