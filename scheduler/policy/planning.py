"""Policy: one plan for the whole queue: who starts now, and why each other job waits.

Gates first (gates.py), then in order (ordering.py) whoever fits (placement.py). The first job that
does not fit is promised GPUs, and others go around it (backfill.py); at last it is asked whether
running jobs should make room (preemption.py). Jobs that are alike share one look and one tuple of
reasons, so that a queue of 100 000 is planned with reasons within a second.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime
from operator import attrgetter

from scheduler.blockers import Blocker
from scheduler.jobs import QueuedJob
from scheduler.plans import Placement, Plan, PlanPolicy, RunningJob, Slots, Yield
from scheduler.policy import gates, preemption
from scheduler.policy.gates import Tally
from scheduler.policy.groups import Group, Groups
from scheduler.policy.ordering import Line, Shares, overdue
from scheduler.policy.room import Room
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
    rules = rules or Rules()
    pass_ = _Pass(jobs, slots, policy, now, rules)
    eligible = [job for job in jobs if not job.waits]
    ahead = overdue(eligible, slots.running, rules.order, now)
    for job in Line(eligible, pass_.shares, rules.order, now, pass_.passes, ahead):
        pass_.serve(job)
    return Plan(
        placements=tuple(pass_.placements),
        preemptions=pass_.preemptions(),
        evictions=gates.evictions(pass_.tally),
        blockers=pass_.reasons(),
    )


class _Pass:
    """What has been given so far."""

    def __init__(
        self, jobs: list[QueuedJob], slots: Slots, policy: PlanPolicy, now: datetime, rules: Rules
    ) -> None:
        self.shares = Shares(slots, {job.owner for job in jobs})
        self.tally = Tally(slots, policy, rules, now, jobs)
        self.placements: list[Placement] = []
        self._room = Room(self.tally)
        self._groups = Groups()
        self._held = [job for job in jobs if job.waits]
        # Those that only lack GPUs, in order.
        self._lacking: list[tuple[QueuedJob, Group]] = []

    def passes(self, job: QueuedJob) -> bool:
        """Whether one like it has been refused, so that it waits too."""
        group = self._groups.of(job)
        if not group.is_refused or job.id in self._room.kept:
            return False
        if group.lacks and len(self._lacking) < LOOKED_AT:
            return False
        group.ids.append(job.id)
        return True

    def serve(self, job: QueuedJob) -> None:
        """Place the job, or put it to those that wait."""
        group = self._groups.of(job)
        if not group.is_refused or job.id in self._room.kept:
            group.lacks = not self._refusals(group)
            if group.lacks and self._start(job, group):
                return
            group.is_refused = True
        group.ids.append(job.id)
        if group.lacks and len(self._lacking) < LOOKED_AT:
            self._lacking.append((job, group))
            self._room.promise_to(job, group)

    def preemptions(self) -> tuple[Yield, ...]:
        """Who is asked to make room for the first jobs that lack GPUs."""
        able = [job for job in self.tally.slots.running if job.preemptible and not job.yields]
        found: list[Yield] = []
        for job, group in self._lacking if able else ():
            wishes = self._make_room(job, group, able)
            gone = {wish.job_id for wish in wishes}
            able = [one for one in able if one.id not in gone]
            found += wishes
        return tuple(found)

    def reasons(self) -> dict[int, tuple[Blocker, ...]]:
        """Why each job waits, as things stand at the end of the pass."""
        found: dict[int, tuple[Blocker, ...]] = {}
        held = [(job, self._groups.of(job)) for job in self._held]
        shared: dict[tuple[int, int], tuple[Blocker, ...]] = {}
        for group in self._groups:
            group.why = self._explain(group)
            found.update(dict.fromkeys(group.ids, group.why))
        for job, group in held:
            key = (id(job.waits), id(group))
            if key not in shared:
                shared[key] = (*job.waits, *group.why)
            found[job.id] = shared[key]
        for job, group in self._lacking:
            if job.id in self._room.kept or self._room.is_promised(job.id):
                found[job.id] = self._explain(group, job.id)
        return found

    def _start(self, job: QueuedJob, group: Group) -> bool:
        chosen = self._room.choose(job, group)
        if chosen is None:
            return False
        uuids = self._room.take(job, chosen)
        host = self.tally.slots.host
        self.placements.append(Placement(job_id=job.id, host=host, gpu_uuids=uuids))
        self.tally.count(group.ask)
        self.shares.count(job.owner, job.requirement)
        return True

    def _make_room(self, job: QueuedJob, group: Group, able: list[RunningJob]) -> tuple[Yield, ...]:
        room, tally = self._room, self.tally
        wishes = preemption.victims(
            job,
            able,
            replace(tally.slots, gpus=tuple(room.gpus)),
            tally.rules.preemption,
            tally.now,
            lambda gpu: room.could_take(job, group, gpu),
        )
        room.keep(job, wishes or ())
        return wishes or ()

    def _refusals(self, group: Group) -> tuple[Blocker, ...]:
        """What gates say; the same as before while nothing has been placed since."""
        mark = len(self.placements)
        if group.mark != mark:
            group.mark, group.refusals = mark, gates.refusals(group.ask, self.tally)
        return group.refusals

    def _explain(self, group: Group, job_id: int | None = None) -> tuple[Blocker, ...]:
        """The most telling first."""
        found = self._refusals(group)
        if group.ask.requirement.gpus and self.tally.slots.blocker is None:
            found += self._room.why(group, job_id)
        return tuple(sorted(found, key=_tier)) if len(found) > 1 else found


_tier = attrgetter("tier")
