"""Policy: one plan for the whole queue: which jobs start now, and why each other job waits.

Gates come first (gates.py). Then jobs are placed in order (order.py) where they fit (placement.py).
A job above its owner's share follows those within shares, and no GPU is reserved for it.
The first job that does not fit gets a reservation, and later jobs are backfilled around it
(placement.py). Finally, preemption candidates are computed (preemption.py). Jobs with identical
requests share one verdict and one tuple of blockers, so that a queue of 100 000 jobs is planned
and explained within a second.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from operator import attrgetter
from typing import Any

from msgspec.structs import replace

from scheduler.facts.blockers import Blocker, BlockerCode
from scheduler.facts.jobs import CLASSES, QueuedJob, Requirement
from scheduler.facts.plans import Placement, Plan, PlanPolicy, RunningJob, Slot, Slots, Yield
from scheduler.queue.planner import gates, placement, preemption
from scheduler.queue.planner.gates import PassState, PlannerThresholds, RequestClass
from scheduler.queue.planner.matching import can_never_match, reject_code
from scheduler.queue.planner.order import ABOVE, ServiceOrder, Shares, overdue
from scheduler.queue.planner.placement import Reservation, RunningUntil

# Number of jobs without free GPUs for which a reservation or preemption is considered.
MOST_CONSIDERED = 16


class RequestGroup:
    """Jobs with identical requests; `ids` are the waiting ones. A rejection lasts for the pass.

    kind: equal for equal requirements. lacks_only_gpus: every gate is passed. refusals: the gates'
    blockers when `mark` jobs had been placed.
    """

    __slots__ = (
        "ids",
        "is_final",
        "is_rejected",
        "kind",
        "lacks_only_gpus",
        "mark",
        "refusals",
        "request",
        "why",
    )

    def __init__(self, request: RequestClass, kind: int) -> None:
        self.request = request
        self.kind = kind
        self.mark = -1
        self.refusals: tuple[Blocker, ...] = ()
        self.why: tuple[Blocker, ...] = ()
        self.is_rejected = False
        self.is_final: bool | None = None
        self.lacks_only_gpus = False
        self.ids: list[int] = []


class RequestGroups:
    """The group of each job. Iterate to get all groups."""

    def __init__(self) -> None:
        self._by_key: dict[tuple[str, int, int, timedelta | None, bool], RequestGroup] = {}
        # Equal requirements have one kind. The lookup by identity is quicker than by value.
        self._requirements: dict[Requirement, int] = {}
        self._kinds: dict[int, int] = {}

    def __iter__(self) -> Iterator[RequestGroup]:
        return iter(self._by_key.values())

    def of(self, job: QueuedJob) -> RequestGroup:
        # The caller keeps the jobs of the pass alive, so no id() is reused.
        requirement = job.requirement
        kind = self._kinds.get(id(requirement))
        if kind is None:
            kind = self._requirements.setdefault(requirement, len(self._requirements))
            self._kinds[id(requirement)] = kind
        key = (job.owner, job.priority, kind, job.lasts, job.preemptible)
        group = self._by_key.get(key)
        if group is None:
            request = RequestClass(job.owner, job.priority, requirement, job.lasts, job.preemptible)
            group = self._by_key[key] = RequestGroup(request, kind)
        return group


class GpuPool:
    """The GPUs of a host as they fill up in one pass, and the one backfill reservation.

    GPUs only fill up, so the verdict on a kind of request holds until the end of the pass.
    """

    def __init__(self, state: PassState) -> None:
        self.gpus: list[Slot] = list(state.slots.gpus)
        self.reservation: Reservation | None = None
        self._is_mixed = len({gpu.power for gpu in self.gpus}) > 1
        # Jobs for which GPUs were freed.
        self.beneficiaries = {gpu.reserved_for for gpu in self.gpus if gpu.reserved_for is not None}
        self._state = state
        self._policy = state.policy
        self._ends: list[RunningUntil] = placement.running_until(state.slots.running, state.now)
        # Jobs are preempted for the reserved job, so it blocks no other preemption any more.
        self._is_fulfilled = False
        self._full: set[Any] = set()
        # By kind, and whether the length is known, of one reservation.
        self._exclusions: tuple[Reservation | None, dict[Any, Mapping[str, Blocker]]] = (None, {})
        self._explained: dict[Any, tuple[Blocker, ...]] = {}

    def choose(self, job: QueuedJob, group: RequestGroup) -> tuple[Slot, ...] | None:
        """The GPUs that the job gets; () if it requests none; None if it must wait."""
        if job.requirement.gpus == 0:
            return ()
        kind = None if job.id in self.beneficiaries else self._kind(group)
        if kind is not None and kind in self._full:
            return None
        excluded = self._excluded(group)
        request = group.request
        strength = placement.strength(request.priority, request.lasts) if self._is_mixed else 0
        chosen = placement.choose(
            job.requirement, self.gpus, self._policy, excluded, job.id, strength
        )
        if chosen is None and kind is not None:
            self._full.add(kind)
        return chosen

    def take(self, job: QueuedJob, chosen: Iterable[Slot]) -> tuple[str, ...]:
        """Assign GPUs to the job. Returns their UUIDs in order of the GPU index."""
        uuids = tuple(gpu.gpu_uuid for gpu in sorted(chosen, key=lambda gpu: gpu.index))
        if not uuids:
            return ()
        self.gpus = [
            placement.after_placement(gpu, job.id, job.requirement)
            if gpu.gpu_uuid in uuids
            else gpu
            for gpu in self.gpus
        ]
        now, lasts = self._state.now, job.lasts
        self._ends.append(RunningUntil(job.id, None if lasts is None else now + lasts))
        if self.reservation is not None:
            self.reservation = placement.reservation_after(self.reservation, job, uuids, now)
        return uuids

    def reserve_for(self, job: QueuedJob, group: RequestGroup) -> None:
        """Reserve GPUs, unless there is a reservation or the job would not fit on empty GPUs."""
        if self.reservation is None and job.requirement.gpus:
            state = self._state
            excluded = self._closed(group)
            self.reservation = placement.reserve(
                job, self.gpus, self._ends, self._policy, state.now, excluded
            )

    def could_take(self, job: QueuedJob, group: RequestGroup) -> Callable[[Slot], bool]:
        """Whether the job fits on a hypothetical state of a GPU, until the pool changes."""
        excluded = self._closed(group) if self._is_fulfilled else self._excluded(group, job.id)
        wanted, policy = job.requirement, self._policy
        return lambda gpu: (
            gpu.gpu_uuid not in excluded and reject_code(wanted, gpu, policy, job.id) is None
        )

    def reserve_freed(self, job: QueuedJob, yields: Sequence[Yield]) -> None:
        """Reserve the GPUs that these jobs leave for the job."""
        uuids = {uuid for request in yields for uuid in request.gpu_uuids}
        self.gpus = [
            replace(gpu, reserved_for=job.id) if gpu.gpu_uuid in uuids else gpu for gpu in self.gpus
        ]
        if uuids:
            self.beneficiaries.add(job.id)
            self._is_fulfilled = self._is_fulfilled or self.holds_reservation(job.id)

    def holds_reservation(self, job_id: int) -> bool:
        return self.reservation is not None and self.reservation.job.id == job_id

    def begin(self) -> None:
        """Begin another pass, at the time of the state."""
        self.reservation, self._is_fulfilled = None, False
        self._full.clear()
        self._explained.clear()

    def release(self, job_id: int) -> list[Slot]:
        """Record that a job has left its GPUs; returns these."""
        freed = [gpu.without({job_id}) for gpu in self.gpus if job_id in gpu.jobs]
        if freed:
            by_uuid = {gpu.gpu_uuid: gpu for gpu in freed}
            self.gpus = [by_uuid.get(gpu.gpu_uuid, gpu) for gpu in self.gpus]
            self._ends = [stay for stay in self._ends if stay.job_id != job_id]
        return freed

    def change(self, gpu_uuids: Collection[str], **changes: Any) -> None:
        """Replace fields of these GPUs."""
        self.gpus = [
            replace(gpu, **changes) if gpu.gpu_uuid in gpu_uuids else gpu for gpu in self.gpus
        ]

    def explain(self, group: RequestGroup, job_id: int | None = None) -> tuple[Blocker, ...]:
        """Why too few GPUs match; job_id: the job with a reservation or with freed GPUs."""
        kind = None if job_id is not None else self._kind(group)
        blockers = None if kind is None else self._explained.get(kind)
        if blockers is None:
            requirement, constraints = group.request.requirement, self._constraints(group, job_id)
            blockers = placement.explain(requirement, self.gpus, self._policy, constraints, job_id)
            if kind is not None:
                self._explained[kind] = blockers
        return blockers

    def _kind(self, group: RequestGroup) -> Any:
        """A cache key: groups with an equal key get equal verdicts. None = do not cache."""
        slots, request, reservation = self._state.slots, group.request, self.reservation
        if slots.windows:
            return None
        is_full = self._state.starts == 0
        is_pressed = is_full or slots.throttle.closed_gpus or self._state.reduced
        urgency = CLASSES[request.priority] if is_pressed else None
        owner = request.owner if self._state.reduced else None
        if reservation is None:
            return (group.kind, urgency, is_full, owner)
        over = placement.is_over_before(reservation, request.lasts, self._state.now)
        return (
            group.kind,
            urgency,
            is_full,
            owner,
            reservation.job.id,
            over,
            over or request.lasts is None,
        )

    def _closed(self, group: RequestGroup) -> Mapping[str, Blocker]:
        """GPUs closed to such a job by models, time windows or load."""
        return _merged(gates.gpu_constraints(group.request, self._state, self.gpus))

    def _excluded(self, group: RequestGroup, job_id: int | None = None) -> Mapping[str, Blocker]:
        """The same, and GPUs reserved for another job."""
        return _merged(self._constraints(group, job_id))

    def _constraints(self, group: RequestGroup, job_id: int | None) -> gates.Constraints:
        request, state = group.request, self._state
        constraints = gates.gpu_constraints(request, state, self.gpus)
        if self.reservation is None or (job_id is not None and self.holds_reservation(job_id)):
            return constraints
        ahead = self._reserved(group, self.reservation)
        return [*constraints, ahead] if ahead else constraints

    def _reserved(self, group: RequestGroup, reservation: Reservation) -> Mapping[str, Blocker]:
        """GPUs reserved for another job, on which a job of the group would delay it."""
        request, now = group.request, self._state.now
        if placement.is_over_before(reservation, request.lasts, now):
            return placement.NO_EXCLUSIONS
        if self._exclusions[0] is not reservation:
            self._exclusions = (reservation, {})
        key = (group.kind, request.lasts is None)
        of_kind = self._exclusions[1]
        if key not in of_kind:
            of_kind[key] = placement.reservation_exclusions(
                reservation, request.requirement, request.lasts, now
            )
        return of_kind[key]


def _merged(constraints: gates.Constraints) -> Mapping[str, Blocker]:
    """One constraint of each GPU; the first kind counts."""
    if len(constraints) < 2:
        return constraints[0] if constraints else placement.NO_EXCLUSIONS
    return {uuid: why for each in reversed(constraints) for uuid, why in each.items()}


def plan(
    queue: Iterable[QueuedJob],
    slots: Slots,
    policy: PlanPolicy,
    now: datetime,
    rules: PlannerThresholds | None = None,
) -> Plan:
    """Place the jobs that fit, and explain the others. The order of the input does not matter."""
    pass_ = place(queue, slots, policy, now, rules)
    return Plan(
        placements=tuple(pass_.placements),
        preemptions=pass_.preemptions,
        evictions=pass_.evictions,
        reserved_for=pass_.reserved_for,
        blockers=pass_.reasons(),
    )


def place(
    queue: Iterable[QueuedJob],
    slots: Slots,
    policy: PlanPolicy,
    now: datetime,
    rules: PlannerThresholds | None = None,
) -> Pass:
    """The placing part of `plan`, without reasons."""
    jobs = list(queue)
    rules = rules or PlannerThresholds()
    pass_ = Pass(jobs, slots, policy, now, rules)
    eligible = [job for job in jobs if not job.waits]
    pass_.ahead = overdue(eligible, slots.running, now)
    for job in ServiceOrder(
        eligible, pass_.shares, rules.order, now, pass_.is_known_to_wait, pass_.ahead
    ):
        pass_.serve(job)
    pass_.preemptions = pass_.preempt()
    pass_.evictions = gates.evictions(pass_.state)
    return pass_


class Pass:
    """State and result of one planning pass."""

    def __init__(
        self,
        jobs: list[QueuedJob],
        slots: Slots,
        policy: PlanPolicy,
        now: datetime,
        rules: PlannerThresholds,
    ) -> None:
        self.state = PassState(slots, policy, rules, now, jobs)
        self.shares = Shares(
            slots,
            {job.owner for job in jobs},
            self.state.wanted,
            first_job_free=rules.quotas.first_job_free,
        )
        self.placements: list[Placement] = []
        self.preemptions: tuple[Yield, ...] = ()
        self.evictions: tuple[Yield, ...] = ()
        # The overdue job of each priority.
        self.ahead: dict[int, QueuedJob] = {}
        self._pool = GpuPool(self.state)
        self._may_leave = {job.id: job for job in slots.running if job.preemptible}
        self.groups = RequestGroups()
        self._waiting = [job for job in jobs if job.waits]
        # Jobs that pass all gates but find no GPUs, in order.
        self._lacking_gpus: list[tuple[QueuedJob, RequestGroup]] = []

    def is_known_to_wait(self, job: QueuedJob) -> bool:
        """Whether an identical request was rejected in this pass; the job then waits too."""
        group = self.groups.of(job)
        if not group.is_rejected or job.id in self._pool.beneficiaries:
            return False
        if group.lacks_only_gpus and len(self._lacking_gpus) < MOST_CONSIDERED:
            return False
        group.ids.append(job.id)
        return True

    def serve(self, job: QueuedJob) -> None:
        """Place the job, or record that it waits."""
        group = self.groups.of(job)
        if not group.is_rejected or job.id in self._pool.beneficiaries:
            group.lacks_only_gpus = not self._refusals(group)
            if group.lacks_only_gpus and self._start(job, group):
                return
            group.is_rejected = True
        group.ids.append(job.id)
        if group.lacks_only_gpus and len(self._lacking_gpus) < MOST_CONSIDERED:
            self._lacking_gpus.append((job, group))
            if job.id not in self.state.slots.left_to_others and not self._gives_way(job):
                self._pool.reserve_for(job, group)

    def _gives_way(self, job: QueuedJob) -> bool:
        """Whether the job is above its owner's share while other users wait: it takes only GPUs
        that are free."""
        level = self.shares.level(job.owner, job.priority, job.requirement)
        wanted = self.state.wanted
        return level == ABOVE and len(wanted) > (job.owner in wanted)

    def preempt(self) -> tuple[Yield, ...]:
        """Yield requests to running jobs, for the first jobs that only lack GPUs."""
        preemptible = [
            job for job in self.state.slots.running if job.preemptible and not job.yields
        ]
        requests: list[Yield] = []
        for job, group in self._lacking_gpus if preemptible else ():
            if self._gives_way(job):
                continue
            yields = self._preempt_for(job, group, preemptible)
            leaving = {request.job_id for request in yields}
            preemptible = [other for other in preemptible if other.id not in leaving]
            requests += yields
        return tuple(requests)

    @property
    def beneficiaries(self) -> Collection[int]:
        """The jobs for which GPUs were freed, or are about to be."""
        return self._pool.beneficiaries

    @property
    def reserved_for(self) -> int | None:
        """The job with the backfill reservation."""
        reservation = self._pool.reservation
        return None if reservation is None else reservation.job.id

    def reasons_of(self, job: QueuedJob) -> tuple[Blocker, ...]:
        """Blockers of one waiting job, as of the end of the pass."""
        is_first = job.id in self._pool.beneficiaries or self._pool.holds_reservation(job.id)
        return (*job.waits, *self._explain(self.groups.of(job), job.id if is_first else None))

    def is_final(self, job: QueuedJob) -> bool:
        """Whether waiting cannot lift what keeps the job."""
        group = self.groups.of(job)
        if group.is_final is None:
            wanted, gpus = job.requirement, self.state.slots.gpus
            matching = sum(not can_never_match(wanted, gpu) for gpu in gpus)
            is_readable = bool(gpus) and self.state.slots.blocker is None
            is_infeasible = is_readable and matching < wanted.gpus
            group.is_final = is_infeasible or any(b.never for b in self._refusals(group))
        return group.is_final or any(blocker.never for blocker in job.waits)

    def reasons(self) -> dict[int, tuple[Blocker, ...]]:
        """Blockers of each waiting job, as of the end of the pass."""
        blockers: dict[int, tuple[Blocker, ...]] = {}
        waiting = [(job, self.groups.of(job)) for job in self._waiting]
        shared: dict[tuple[int, int], tuple[Blocker, ...]] = {}
        for group in self.groups:
            group.why = self._explain(group)
            blockers.update(dict.fromkeys(group.ids, group.why))
        for job, group in waiting:
            key = (id(job.waits), id(group))
            if key not in shared:
                shared[key] = (*job.waits, *group.why)
            blockers[job.id] = shared[key]
        for job, group in self._lacking_gpus:
            if job.id in self._pool.beneficiaries or self._pool.holds_reservation(job.id):
                blockers[job.id] = self._explain(group, job.id)
        return blockers

    def _start(self, job: QueuedJob, group: RequestGroup) -> bool:
        chosen = self._pool.choose(job, group)
        if chosen is None:
            return False
        uuids = self._pool.take(job, chosen)
        host = self.state.slots.host
        self.placements.append(
            Placement(job_id=job.id, host=host, gpu_uuids=uuids, requirement=job.requirement)
        )
        self.state.count(job.id, group.request, uuids)
        self.shares.count(job.owner, job.requirement)
        return True

    def _preempt_for(
        self, job: QueuedJob, group: RequestGroup, preemptible: list[RunningJob]
    ) -> tuple[Yield, ...]:
        pool, state = self._pool, self.state
        yields = preemption.victims(
            job,
            preemptible,
            replace(state.slots, gpus=tuple(pool.gpus)),
            state.rules.preemption,
            state.now,
            pool.could_take(job, group),
        )
        pool.reserve_freed(job, yields or ())
        return yields or ()

    def _refusals(self, group: RequestGroup) -> tuple[Blocker, ...]:
        """Blockers from the gates, computed again only after a placement."""
        mark = len(self.placements)
        if group.mark != mark:
            group.mark, group.refusals = mark, gates.refusals(group.request, self.state)
        return group.refusals

    def _explain(self, group: RequestGroup, job_id: int | None = None) -> tuple[Blocker, ...]:
        """Blockers of a group, by tier."""
        blockers = self._refusals(group)
        request = group.request
        if request.requirement.gpus and self.state.slots.blocker is None:
            owner, priority, requirement = request[:3]
            of_gpus = self._pool.explain(group, job_id)
            if self._may_leave:
                of_gpus = tuple(self._with_leave(blocker, priority) for blocker in of_gpus)
            above = self.shares.above(owner, priority, requirement, self.state.wanted)
            # The order of users matters only for GPUs that jobs of the queue hold.
            if above is not None and placement.is_contended(of_gpus):
                blockers += (above,)
            blockers += of_gpus
        return tuple(sorted(blockers, key=_tier)) if len(blockers) > 1 else blockers

    def _with_leave(self, blocker: Blocker, priority: int) -> Blocker:
        """The same with the moment from which the jobs that hold the GPU may be preempted."""
        if blocker.code is not BlockerCode.GPU_TAKEN or not blocker.jobs:
            return blocker
        state = self.state
        at = preemption.leave_from(blocker.jobs, self._may_leave, priority, state.rules.preemption)
        if at is None or at <= state.now:
            return blocker
        return dataclasses.replace(
            blocker, details=(*blocker.details, ("leave_from", at.isoformat()))
        )


_tier = attrgetter("tier")
