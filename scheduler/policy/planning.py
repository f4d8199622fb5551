"""Policy: one plan for the whole queue: who starts now, and why each other job waits.

Gates first (gates.py), then in order (ordering.py) whoever fits (placement.py). The first job that
does not fit is promised GPUs, and others go around it (backfill.py); at last it is asked whether
running jobs should make room (preemption.py). Jobs that are alike share one look and one tuple of
reasons, so that a queue of 100 000 is planned with reasons within a second.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime

from scheduler.blockers import Blocker
from scheduler.jobs import QueuedJob
from scheduler.plans import Placement, Plan, PlanPolicy, RunningJob, Slot, Slots, Yield
from scheduler.policy import backfill, gates, placement, preemption
from scheduler.policy.backfill import Reservation, Stay
from scheduler.policy.gates import Ask, Tally
from scheduler.policy.groups import Group, Groups
from scheduler.policy.ordering import Line, Shares
from scheduler.policy.refusing import refusal
from scheduler.policy.rules import Rules

# Of the jobs that do not fit, so many are looked at for a promise, or for others to make room.
LOOKED_AT = 16


def plan(
    queue: Iterable[QueuedJob],
    slots: Slots,
    policy: PlanPolicy,
    now: datetime,
    rules: Rules | None = None,
) -> Plan:
    """Place what fits, explain the rest. The same input gives the same plan, in any order."""
    jobs = list(queue)
    pass_ = _Pass(jobs, slots, policy, now, rules or Rules())
    for job in Line((job for job in jobs if not job.waits), pass_.shares, pass_.rules.order, now):
        pass_.serve(job)
    return Plan(
        placements=tuple(pass_.placements),
        preemptions=pass_.preemptions(),
        evictions=gates.evictions(pass_.tally),
        blockers=pass_.reasons(),
    )


class _Pass:
    """The slots as they fill up during one pass."""

    def __init__(
        self, jobs: list[QueuedJob], slots: Slots, policy: PlanPolicy, now: datetime, rules: Rules
    ) -> None:
        self.rules = rules
        self.shares = Shares(slots, {job.owner for job in jobs})
        self.tally = Tally(slots, policy, rules, now, jobs)
        self.placements: list[Placement] = []
        self._policy = policy
        self._now = now
        self._gpus = list(slots.gpus)
        self._stays = backfill.stays(slots.running, now)
        self._groups = Groups()
        self._held = [job for job in jobs if job.waits]
        # Those that only lack GPUs, in order.
        self._lacking: list[tuple[QueuedJob, Group]] = []
        self._reservation: Reservation | None = None
        # Jobs for which GPUs were freed.
        self._kept = {gpu.kept_for for gpu in slots.gpus} - {None}

    def serve(self, job: QueuedJob) -> None:
        """Place the job, or put it to those that wait."""
        group = self._groups.of(job)
        if not group.is_refused or job.id in self._kept:
            group.lacks = not gates.refusals(group.ask, self.tally)
            if group.lacks and self._start(job, group):
                return
            group.is_refused = True
        group.ids.append(job.id)
        if group.lacks and len(self._lacking) < LOOKED_AT:
            self._miss(job, group)

    def preemptions(self) -> tuple[Yield, ...]:
        """Who is asked to make room for the first jobs that lack GPUs."""
        running = [job for job in self.tally.slots.running if job.preemptible]
        found: list[Yield] = []
        for job, group in self._lacking if running else ():
            wishes = self._make_room(job, group, [r for r in running if not r.yields])
            gone = {wish.job_id for wish in wishes}
            running = [r for r in running if r.id not in gone]
            found += wishes
        return tuple(found)

    def reasons(self) -> dict[int, tuple[Blocker, ...]]:
        """Why each job waits, as things stand at the end of the pass."""
        found: dict[int, tuple[Blocker, ...]] = {}
        why = {id(group): self._explain(group.ask) for group in self._groups}
        shared: dict[tuple[int, int], tuple[Blocker, ...]] = {}
        for job, group in ((job, self._groups.of(job)) for job in self._held):
            key = (id(job.waits), id(group))
            if key not in shared:
                shared[key] = (*job.waits, *why.get(id(group), ()))
            found[job.id] = shared[key]
        for group in self._groups:
            found.update(dict.fromkeys(group.ids, why.get(id(group), ())))
        for job, group in self._lacking:
            if job.id in self._kept or self._is_promised(job.id):
                found[job.id] = self._explain(group.ask, job.id)
        return found

    def _start(self, job: QueuedJob, group: Group) -> bool:
        asked = job.requirement
        chosen = placement.choose(asked, self._gpus, self._policy, self._bars(group.ask), job.id)
        if chosen is None:
            return False
        self._take(job, chosen)
        self.tally.count(group.ask)
        self.shares.count(job.owner, asked)
        return True

    def _take(self, job: QueuedJob, chosen: tuple[Slot, ...]) -> None:
        uuids = tuple(gpu.gpu_uuid for gpu in sorted(chosen, key=lambda gpu: gpu.index))
        host = self.tally.slots.host
        self.placements.append(Placement(job_id=job.id, host=host, gpu_uuids=uuids))
        self._gpus = [
            placement.taken(gpu, job.id, job.requirement) if gpu.gpu_uuid in uuids else gpu
            for gpu in self._gpus
        ]
        lasts = job.lasts
        self._stays.append(Stay(job.id, None if lasts is None else self._now + lasts))
        if self._reservation is not None:
            self._reservation = backfill.after(self._reservation, job, uuids, self._now)

    def _miss(self, job: QueuedJob, group: Group) -> None:
        """A job that nothing but GPUs keeps from starting."""
        self._lacking.append((job, group))
        if self._reservation is None:
            bars = gates.bars(group.ask, self.tally, self._gpus)
            self._reservation = backfill.reserve(
                job, self._gpus, self._stays, self._policy, self.rules.backfill, self._now, bars
            )

    def _make_room(
        self, job: QueuedJob, group: Group, running: list[RunningJob]
    ) -> tuple[Yield, ...]:
        bars, asked = self._bars(group.ask, job.id), job.requirement
        wishes = preemption.victims(
            job,
            running,
            replace(self.tally.slots, gpus=tuple(self._gpus)),
            self.rules.preemption,
            self._now,
            lambda gpu: (
                gpu.gpu_uuid not in bars and refusal(asked, gpu, self._policy, job.id) is None
            ),
        )
        kept = {uuid for wish in wishes or () for uuid in wish.gpu_uuids}
        self._gpus = [
            replace(gpu, kept_for=job.id) if gpu.gpu_uuid in kept else gpu for gpu in self._gpus
        ]
        if kept:
            self._kept.add(job.id)
            # What is freed for it is kept for it.
            self._reservation = None if self._is_promised(job.id) else self._reservation
        return wishes or ()

    def _is_promised(self, job_id: int | None) -> bool:
        return self._reservation is not None and self._reservation.job.id == job_id

    def _bars(self, ask: Ask, job_id: int | None = None) -> Mapping[str, Blocker]:
        """The GPUs that are not for such a job: agreed times, pressure, the promise to another."""
        found = gates.bars(ask, self.tally, self._gpus)
        promise = self._reservation
        if promise is None or ask.requirement.gpus == 0 or self._is_promised(job_id):
            return found
        ahead = backfill.bars(promise, ask.requirement, ask.lasts, self._policy, self._now)
        return {**ahead, **found} if ahead else found

    def _explain(self, ask: Ask, job_id: int | None = None) -> tuple[Blocker, ...]:
        found = list(gates.refusals(ask, self.tally))
        if ask.requirement.gpus and self.tally.slots.blocker is None:
            bars = self._bars(ask, job_id)
            found += placement.explain(ask.requirement, self._gpus, self._policy, bars, job_id)
        return tuple(sorted(found, key=lambda blocker: blocker.tier))
