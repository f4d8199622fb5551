"""Policy: the GPUs of a host as they fill up in one pass: who gets which, and why others get none.

What has been looked at once for a kind of request is known until the end of the pass, as GPUs only
fill up.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from scheduler.blockers import Blocker
from scheduler.jobs import CLASSES, QueuedJob
from scheduler.plans import Slot, Yield
from scheduler.policy import backfill, gates, placement
from scheduler.policy.backfill import Reservation, Stay
from scheduler.policy.gates import Tally
from scheduler.policy.groups import Group
from scheduler.policy.refusing import verdict


class Room:
    """The slots, and the one promise among them."""

    def __init__(self, tally: Tally) -> None:
        self.gpus: list[Slot] = list(tally.slots.gpus)
        self.promise: Reservation | None = None
        # Jobs for which GPUs were freed.
        self.kept = {gpu.kept_for for gpu in self.gpus if gpu.kept_for is not None}
        self._tally = tally
        self._policy = tally.policy
        self._stays: list[Stay] = backfill.stays(tally.slots.running, tally.now)
        # Others make room for the promised job, so that it keeps nobody else from asking for that.
        self._is_fulfilled = False
        self._full: set[Any] = set()
        self._why: dict[Any, tuple[Blocker, ...]] = {}

    def choose(self, job: QueuedJob, group: Group) -> tuple[Slot, ...] | None:
        """The GPUs that it gets; none for who asks for none; None when it must wait."""
        if job.requirement.gpus == 0:
            return ()
        kind = None if job.id in self.kept else self._kind(group)
        if kind is not None and kind in self._full:
            return None
        bars = self._bars(group)
        chosen = placement.choose(job.requirement, self.gpus, self._policy, bars, job.id)
        if chosen is None and kind is not None:
            self._full.add(kind)
        return chosen

    def take(self, job: QueuedJob, chosen: Iterable[Slot]) -> tuple[str, ...]:
        """Give the job its GPUs; their UUIDs in the order of the GPUs."""
        uuids = tuple(gpu.gpu_uuid for gpu in sorted(chosen, key=lambda gpu: gpu.index))
        if not uuids:
            return ()
        self.gpus = [
            placement.taken(gpu, job.id, job.requirement) if gpu.gpu_uuid in uuids else gpu
            for gpu in self.gpus
        ]
        now, lasts = self._tally.now, job.lasts
        self._stays.append(Stay(job.id, None if lasts is None else now + lasts))
        if self.promise is not None:
            self.promise = backfill.after(self.promise, job, uuids, now)
        return uuids

    def promise_to(self, job: QueuedJob, group: Group) -> None:
        """Unless another job has been promised GPUs, or these would not suit if all had left."""
        if self.promise is None and job.requirement.gpus:
            tally = self._tally
            bars = gates.bars(group.ask, tally, self.gpus)
            self.promise = backfill.reserve(
                job, self.gpus, self._stays, self._policy, tally.rules.backfill, tally.now, bars
            )

    def could_take(self, job: QueuedJob, group: Group, gpu: Slot) -> bool:
        """Whether a GPU, as it might become, would take the job."""
        if self._is_fulfilled:
            bars = gates.bars(group.ask, self._tally, self.gpus)
        else:
            bars = self._bars(group, job.id)
        free = verdict(job.requirement, gpu, self._policy, job.id) is None
        return gpu.gpu_uuid not in bars and free

    def keep(self, job: QueuedJob, wishes: Sequence[Yield]) -> None:
        """What these leave is for the job."""
        uuids = {uuid for wish in wishes for uuid in wish.gpu_uuids}
        self.gpus = [
            replace(gpu, kept_for=job.id) if gpu.gpu_uuid in uuids else gpu for gpu in self.gpus
        ]
        if uuids:
            self.kept.add(job.id)
            self._is_fulfilled = self._is_fulfilled or self.is_promised(job.id)

    def is_promised(self, job_id: int) -> bool:
        return self.promise is not None and self.promise.job.id == job_id

    def why(self, group: Group, job_id: int | None = None) -> tuple[Blocker, ...]:
        """Why too few GPUs suit; `job_id`: the job that is promised some, or has some kept."""
        kind = None if job_id is not None else self._kind(group)
        found = None if kind is None else self._why.get(kind)
        if found is None:
            asked, bars = group.ask.requirement, self._bars(group, job_id)
            found = placement.explain(asked, self.gpus, self._policy, bars, job_id)
            if kind is not None:
                self._why[kind] = found
        return found

    def _kind(self, group: Group) -> Any:
        """The same for groups that fit, or don't, for the same reasons; None = none are alike."""
        slots, ask, promise = self._tally.slots, group.ask, self.promise
        if slots.windows:
            return None
        is_full = self._tally.starts == 0
        urgency = CLASSES[ask.priority] if is_full or slots.throttle.closed_gpus else None
        if promise is None:
            return (group.kind, urgency, is_full)
        over = backfill.is_over_before(promise, ask.lasts, self._tally.now)
        return (group.kind, urgency, is_full, promise.job.id, over, over or ask.lasts is None)

    def _bars(self, group: Group, job_id: int | None = None) -> Mapping[str, Blocker]:
        """The GPUs that are not for such a job: agreed times, pressure, the promise to another."""
        ask, tally = group.ask, self._tally
        found = gates.bars(ask, tally, self.gpus)
        if self.promise is None or (job_id is not None and self.is_promised(job_id)):
            return found
        ahead = backfill.bars(self.promise, ask.requirement, ask.lasts, self._policy, tally.now)
        return {**ahead, **found} if ahead else found
