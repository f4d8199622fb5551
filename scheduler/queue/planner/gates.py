"""Policy: gates, the checks that do not depend on free GPUs: quotas, load, places for CPU jobs.

A gate reads the request that many jobs have in common and the state of the pass, and returns its
blockers. Constraints only tighten during a pass, so a rejected request need not be evaluated again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, NamedTuple

from msgspec import Struct, field
from msgspec.structs import replace

from scheduler.facts.blockers import Blocker, BlockerCode, Tier, details
from scheduler.facts.jobs import CLASSES, PriorityClass, QueuedJob, Requirement
from scheduler.facts.language_models import OWNER
from scheduler.facts.people import UserAccount
from scheduler.facts.plans import PlanPolicy, RunningJob, Slot, Slots, Throttle, Yield
from scheduler.limits.quotas.policy import quotas
from scheduler.limits.quotas.policy.quotas import QuotaPolicy
from scheduler.limits.time_windows import policy as window_rules
from scheduler.limits.time_windows.policy import WindowPolicy
from scheduler.queue.planner.capacity import HostPolicy, HostRoom
from scheduler.queue.planner.matching import can_never_match
from scheduler.queue.planner.order import OrderPolicy
from scheduler.queue.planner.preemption import PreemptionPolicy


class PlannerThresholds(Struct, frozen=True, kw_only=True):
    """The thresholds of all parts of a planning pass."""

    host: HostPolicy = field(default_factory=HostPolicy)
    order: OrderPolicy = field(default_factory=OrderPolicy)
    quotas: QuotaPolicy = field(default_factory=QuotaPolicy)
    preemption: PreemptionPolicy = field(default_factory=PreemptionPolicy)
    windows: WindowPolicy = field(default_factory=WindowPolicy)


class RequestClass(NamedTuple):
    """The part of a job that gates read. Many jobs share it, so each is evaluated once."""

    owner: str
    priority: int
    requirement: Requirement
    lasts: timedelta | None = None
    preemptible: bool = False


class PassState:
    """The state of a pass that gates read; it changes with each placement."""

    def __init__(
        self,
        slots: Slots,
        policy: PlanPolicy,
        rules: PlannerThresholds,
        now: datetime,
        waiting: Iterable[QueuedJob] = (),
    ) -> None:
        self.slots = slots
        self.policy = policy
        self.rules = rules
        self.now = now
        self.people: dict[str, UserAccount] = dict(slots.people)
        self.starts = slots.throttle.starts
        self.cpu_jobs = slots.cpu_jobs
        self.host = HostRoom(policy, rules.host, slots.running)
        # Blockers from a user's limits by kind of request, until the user gets a placement.
        self.limits: dict[str, dict[Any, tuple[Requirement, tuple[Blocker, ...]]]] = {}
        self._bytes = {gpu.gpu_uuid: gpu.total_bytes for gpu in slots.gpus}
        multipliers = slots.throttle.multipliers
        # GPUs on which shares are reduced, and the part of each that each user's jobs hold.
        self.reduced = frozenset(uuid for uuid, part in multipliers.items() if part < 1)
        self._parts: dict[tuple[str, str], float] = {}
        self._owners: dict[int, str] = {}
        if self.reduced:
            for job in slots.running:
                self._hold(job.id, job.owner, job.requirement, job.gpu_uuids)
        # GPUs that each user's waiting jobs could take on this host within the user's own limits.
        self.wanted = wanted_gpus(waiting, slots)

    def part(self, owner: str, gpu_uuid: str) -> float:
        """The part of a GPU in `reduced` that the owner's jobs hold, 0..1."""
        return self._parts.get((owner, gpu_uuid), 0.0)

    def shares(self, gpu: Slot, owner: str) -> bool:
        """Whether other users are on a GPU in `reduced`."""
        return bool(gpu.foreign) or any(self._owners.get(job) != owner for job in gpu.jobs)

    def _hold(
        self, job_id: int, owner: str, requirement: Requirement, gpu_uuids: Iterable[str]
    ) -> None:
        self._owners[job_id] = owner
        for uuid in self.reduced.intersection(gpu_uuids):
            part = quotas.held(requirement, self._bytes.get(uuid)) / requirement.gpus
            self._parts[owner, uuid] = self.part(owner, uuid) + part

    def account(self, owner: str) -> UserAccount:
        """The user's account, including the placements of this pass."""
        return self.people.get(owner) or _without_limits(owner)

    def trusted(self, owner: str) -> frozenset[str]:
        """Saturated GPUs on which a time window of the owner overrides their load."""
        slots = self.slots
        if not slots.windows or not slots.throttle.saturated:
            return frozenset()
        return window_rules.trusted(owner, slots.windows, slots.throttle.saturated, self.now)

    def throttle(self, owner: str) -> Throttle:
        """The throttle for this user; time windows lift its multipliers."""
        trusted, allowed = self.trusted(owner), self.slots.throttle
        if not trusted:
            return allowed
        whole = dict.fromkeys(trusted, 1.0)
        return replace(allowed, multipliers={**allowed.multipliers, **whole})

    def release(self, job: RunningJob, lasts: timedelta | None, ran: timedelta) -> None:
        """Record that a job has ended. lasts: the committed run time, of which it used `ran`."""
        owner, requirement = job.owner, job.requirement
        if self.reduced:
            self._owners.pop(job.id, None)
            for uuid in self.reduced.intersection(job.gpu_uuids):
                part = quotas.held(requirement, self._bytes.get(uuid)) / requirement.gpus
                self._parts[owner, uuid] = max(0.0, self.part(owner, uuid) - part)
        if requirement.gpus == 0 and owner != OWNER:
            self.cpu_jobs = max(0, self.cpu_jobs - 1)
        elif self.starts is not None and requirement.gpus:
            self.starts += 1
        self.host.free(requirement)
        self.limits.pop(owner, None)
        if owner in self.people:
            account = self.people[owner]
            self.people[owner] = quotas.before(account, requirement, lasts, ran)

    def count(self, job_id: int, request: RequestClass, gpu_uuids: Sequence[str]) -> None:
        """Record that a job has been placed on these GPUs."""
        if self.reduced:
            self._hold(job_id, request.owner, request.requirement, gpu_uuids)
        if request.requirement.gpus == 0:
            self.cpu_jobs += 1
        elif self.starts is not None and request.requirement.shares:
            self.starts = max(0, self.starts - 1)
        self.host.take(request.requirement)
        self.limits.pop(request.owner, None)
        account = self.people.get(request.owner)
        if account is not None:
            after = quotas.after(account, request.requirement, request.lasts)
            self.people[request.owner] = after


@lru_cache(maxsize=1024)
def _without_limits(owner: str) -> UserAccount:
    return UserAccount(owner=owner)


def wanted_gpus(waiting: Iterable[QueuedJob], slots: Slots) -> dict[str, float]:
    """GPUs that waiting jobs request which match this host, of users within their limits.

    More than all GPUs count as all.
    """
    wanted: dict[str, float] = {}
    # Users whose jobs could take all GPUs, and those who may take none.
    settled = {name for name, account in slots.people.items() if not quotas.may_take_more(account)}
    parts: dict[int, float] = {}
    gpu_bytes = next((a.capacity.gpu_bytes for a in slots.people.values()), None)
    everything = max((len(a.capacity.gpu_uuids) for a in slots.people.values()), default=0)
    everything = max(everything, len(slots.gpus))
    for job in waiting:
        owner, requirement = job.owner, job.requirement
        if owner in settled or requirement.gpus == 0 or job.waits:
            continue
        part = parts.get(id(requirement))
        if part is None:
            part = quotas.held(requirement, gpu_bytes) if _matches(requirement, slots) else 0.0
            parts[id(requirement)] = part
        if part:
            so_far = wanted[owner] = wanted.get(owner, 0.0) + part
            if so_far >= everything:
                settled.add(owner)
    return wanted


def _matches(requirement: Requirement, slots: Slots) -> bool:
    """Whether enough GPUs of the host match, whatever is free."""
    matching = sum(not can_never_match(requirement, gpu) for gpu in slots.gpus)
    return matching >= requirement.gpus or not slots.gpus


Gate = Callable[[RequestClass, PassState], tuple[Blocker, ...]]


def refusals(request: RequestClass, state: PassState) -> tuple[Blocker, ...]:
    """Every reason of every gate."""
    blockers: tuple[Blocker, ...] = ()
    for gate in GATES:
        blockers += gate(request, state)
    return blockers


Constraints = list[Mapping[str, Blocker]]


def gpu_constraints(request: RequestClass, state: PassState, gpus: Sequence[Slot]) -> Constraints:
    """Blockers of single GPUs for such a request, independent of free memory, by UUID.

    One mapping for each kind of constraint: models, time windows, load, reduced shares.
    """
    slots = state.slots
    if request.requirement.gpus == 0:
        return []
    constraints: Constraints = [_closed_by_load(request, state, gpus)]
    if state.reduced:
        constraints.append(_over_reduced_share(request, state, gpus))
    if slots.windows:
        trusted = state.trusted(request.owner)
        if trusted:
            constraints = [_without(busy, trusted) for busy in constraints]
        constraints.insert(0, closed_by_windows(request, state, gpus))
    if slots.reserved:
        constraints.insert(0, _reserved_for_models(request, slots, gpus))
    return [constraint for constraint in constraints if constraint]


def closed_by_windows(
    request: RequestClass, state: PassState, gpus: Sequence[Slot]
) -> Mapping[str, Blocker]:
    """The GPUs that time windows close to such a request now."""
    slots = state.slots
    asking = window_rules.asking(
        request.owner, request.requirement, request.lasts, request.preemptible, state.now
    )
    return window_rules.closed_for(asking, slots.windows, gpus, slots.running, state.now)


def _without(blockers: Mapping[str, Blocker], gpu_uuids: frozenset[str]) -> Mapping[str, Blocker]:
    return {uuid: blocker for uuid, blocker in blockers.items() if uuid not in gpu_uuids}


def _reserved_for_models(
    request: RequestClass, slots: Slots, gpus: Sequence[Slot]
) -> dict[str, Blocker]:
    """GPUs that brain models have to themselves."""
    return {
        gpu.gpu_uuid: Blocker(
            code=BlockerCode.GPU_RESERVED,
            tier=Tier.MACHINE,
            gpu=gpu.index,
            holder=slots.reserved[gpu.gpu_uuid],
        )
        for gpu in gpus
        if gpu.gpu_uuid in slots.reserved and gpu.gpu_uuid not in request.requirement.among
    }


def _closed_by_load(
    request: RequestClass, state: PassState, gpus: Sequence[Slot]
) -> dict[str, Blocker]:
    """Occupied GPUs that accept no further job because of their load or the utilisation target.

    Empty GPUs are never closed by load. A GPU that one job has alone is taken in any case.
    """
    allowed = state.slots.throttle
    closed = allowed.closed_gpus.get(CLASSES[request.priority], {})
    is_full = state.starts == 0 and CLASSES[request.priority] is not PriorityClass.USER_INITIATED
    if request.requirement.exclusive or not (closed or is_full):
        return {}
    occupied = [g for g in gpus if (g.jobs or g.foreign) and not (g.exclusive or g.undeclared)]
    blockers = {gpu.gpu_uuid: _full(gpu, allowed) for gpu in occupied} if is_full else {}
    return blockers | {g.gpu_uuid: closed[g.gpu_uuid] for g in occupied if g.gpu_uuid in closed}


def _over_reduced_share(
    request: RequestClass, state: PassState, gpus: Sequence[Slot]
) -> dict[str, Blocker]:
    """GPUs loaded by other users, on which this job would exceed its owner's reduced share."""
    blockers: dict[str, Blocker] = {}
    if request.requirement.exclusive:
        # It never shares a GPU.
        return blockers
    throttle, account = state.throttle(request.owner), state.account(request.owner)
    urgency = CLASSES[request.priority]
    for gpu in gpus:
        if gpu.gpu_uuid in state.reduced and state.shares(gpu, request.owner):
            own = state.part(request.owner, gpu.gpu_uuid)
            blocker = quotas.reduced(request.requirement, urgency, account, gpu, own, throttle)
            if blocker is not None:
                blockers[gpu.gpu_uuid] = blocker
    return blockers


def _full(gpu: Slot, allowed: Throttle) -> Blocker:
    """The utilisation target."""
    return Blocker(
        code=BlockerCode.UTIL_TARGET,
        tier=Tier.MACHINE,
        gpu=gpu.index,
        requested="1 start",
        details=details(target=allowed.target),
    )


def evictions(state: PassState) -> tuple[Yield, ...]:
    """Running jobs that must leave because of time windows."""
    slots, policy = state.slots, state.rules.windows
    if not slots.windows:
        return ()
    return window_rules.yields(slots.running, slots.windows, slots.gpus, policy, state.now)


def _class_is_closed(request: RequestClass, state: PassState) -> tuple[Blocker, ...]:
    """Backpressure."""
    closed = state.slots.throttle.closed.get(CLASSES[request.priority])
    return () if closed is None else (closed,)


def _gpus_are_readable(request: RequestClass, state: PassState) -> tuple[Blocker, ...]:
    blocker = state.slots.blocker
    return () if blocker is None or request.requirement.gpus == 0 else (blocker,)


def _cpu_places_are_left(request: RequestClass, state: PassState) -> tuple[Blocker, ...]:
    places = state.policy.cpu_jobs
    # Model services wait for requests most of the time.
    if request.requirement.gpus or request.owner == OWNER or state.cpu_jobs < places:
        return ()
    return (
        Blocker(
            code=BlockerCode.CPU_PLACES,
            requested="1 place",
            available=f"0 of {places}",
            details=details(places=places),
        ),
    )


def _host_has_room(request: RequestClass, state: PassState) -> tuple[Blocker, ...]:
    """Host memory and CPUs."""
    return state.host.lacks(request.requirement)


def _limits_allow_it(request: RequestClass, state: PassState) -> tuple[Blocker, ...]:
    """Quotas, evaluated once for requests that they do not distinguish."""
    owner, requirement = request.owner, request.requirement
    lasts = None if state.account(owner).budget is None else request.lasts
    cached = state.limits.setdefault(owner, {})
    key = (request.priority, id(requirement), lasts)
    if key not in cached:
        # The entry keeps the requirement alive, so its id() is not reused.
        cached[key] = (requirement, _limits(request, state))
    return cached[key][1]


def _limits(request: RequestClass, state: PassState) -> tuple[Blocker, ...]:
    return quotas.refusals(
        request.requirement,
        request.priority,
        request.lasts,
        state.account(request.owner),
        state.throttle(request.owner),
        policy=state.rules.quotas,
    )


GATES: tuple[Gate, ...] = (
    _limits_allow_it,
    _class_is_closed,
    _gpus_are_readable,
    _cpu_places_are_left,
    _host_has_room,
)
