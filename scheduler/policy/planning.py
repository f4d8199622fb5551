"""Policy: one plan for the whole queue: who starts now, and why each other job waits.

Gates first (gates.py), then in order (ordering.py) whoever fits (placement.py); what does not fit
is passed over. Jobs that are alike share one look and one tuple of reasons, so that a queue of
100 000 is planned with reasons within a second.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

from scheduler.blockers import Blocker
from scheduler.jobs import QueuedJob, Requirement
from scheduler.plans import Placement, Plan, PlanPolicy, Slot, Slots
from scheduler.policy import gates, placement
from scheduler.policy.gates import Ask, Tally
from scheduler.policy.ordering import Line, Shares
from scheduler.policy.rules import Rules


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
        evictions=gates.evictions(pass_.tally),
        blockers=pass_.reasons(),
    )


class _Group:
    """Jobs that are alike to every gate and every GPU."""

    __slots__ = ("ask", "ids", "is_refused")

    def __init__(self, ask: Ask) -> None:
        self.ask = ask
        self.is_refused = False
        # Those that wait.
        self.ids: list[int] = []


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
        self._gpus = list(slots.gpus)
        self._groups: dict[tuple[str, int, int, timedelta | None], _Group] = {}
        # Equal requirements are one; looked up by identity first, which is quicker.
        self._requirements: dict[Requirement, int] = {}
        self._known: dict[int, int] = {}
        self._held = [job for job in jobs if job.waits]

    def serve(self, job: QueuedJob) -> None:
        """Place the job, or put it to those that wait."""
        group = self._group(job)
        if not group.is_refused and self._start(job, group.ask):
            return
        group.is_refused = True
        group.ids.append(job.id)

    def reasons(self) -> dict[int, tuple[Blocker, ...]]:
        """Why each job waits, as things stand at the end of the pass."""
        found: dict[int, tuple[Blocker, ...]] = {}
        for job in self._held:
            found[job.id] = (*job.waits, *self._explain(self._group(job).ask))
        for group in self._groups.values():
            if group.ids:
                found.update(dict.fromkeys(group.ids, self._explain(group.ask)))
        return found

    def _group(self, job: QueuedJob) -> _Group:
        requirement = self._known.get(id(job.requirement))
        if requirement is None:
            requirement = self._requirements.setdefault(job.requirement, len(self._requirements))
            self._known[id(job.requirement)] = requirement
        lasts = job.lasts
        key = (job.owner, job.priority, requirement, lasts)
        group = self._groups.get(key)
        if group is None:
            ask = Ask(
                owner=job.owner, priority=job.priority, requirement=job.requirement, lasts=lasts
            )
            group = self._groups[key] = _Group(ask)
        return group

    def _start(self, job: QueuedJob, ask: Ask) -> bool:
        if gates.refusals(ask, self.tally):
            return False
        chosen = placement.choose(
            ask.requirement, self._gpus, self._policy, gates.bars(ask, self.tally), job.id
        )
        if chosen is None:
            return False
        self._take(job, chosen)
        self.tally.count(ask)
        self.shares.count(job.owner, job.requirement)
        return True

    def _take(self, job: QueuedJob, chosen: tuple[Slot, ...]) -> None:
        uuids = tuple(gpu.gpu_uuid for gpu in sorted(chosen, key=lambda gpu: gpu.index))
        host = self.tally.slots.host
        self.placements.append(Placement(job_id=job.id, host=host, gpu_uuids=uuids))
        self._gpus = [
            placement.taken(gpu, job.id, job.requirement) if gpu.gpu_uuid in uuids else gpu
            for gpu in self._gpus
        ]

    def _explain(self, ask: Ask) -> tuple[Blocker, ...]:
        found = list(gates.refusals(ask, self.tally))
        if ask.requirement.gpus and self.tally.slots.blocker is None:
            found += placement.explain(
                ask.requirement, self._gpus, self._policy, gates.bars(ask, self.tally)
            )
        return tuple(sorted(found, key=lambda blocker: blocker.tier))
