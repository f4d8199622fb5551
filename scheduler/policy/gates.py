"""Policy: what may keep a job from starting whatever is free: a gate each, asked in turn.

A gate sees what is alike in many jobs (Ask) and what the pass has placed so far (Tally), and
returns its blockers. It gets stricter during a pass, never laxer: who was turned away once needs no
second look.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from scheduler.blockers import Blocker, Tier
from scheduler.jobs import CLASSES, PriorityClass, QueuedJob, Requirement
from scheduler.people import Standing
from scheduler.plans import PlanPolicy, Slot, Slots, Throttle, Yield
from scheduler.policy import quotas, window_yields, windows
from scheduler.policy.refusing import is_known_to_lack
from scheduler.policy.rules import Rules


class Ask(NamedTuple):
    """What gates may look at of a job: the same for many jobs, so each question is asked once."""

    owner: str
    priority: int
    requirement: Requirement
    lasts: timedelta | None = None
    preemptible: bool = False


class Tally:
    """What gates need to know, as it changes while a pass places jobs."""

    def __init__(
        self,
        slots: Slots,
        policy: PlanPolicy,
        rules: Rules,
        now: datetime,
        waiting: Iterable[QueuedJob] = (),
    ) -> None:
        self.slots = slots
        self.policy = policy
        self.rules = rules
        self.now = now
        self.people: dict[str, Standing] = dict(slots.people)
        self.starts = slots.throttle.starts
        self.cpu_jobs = slots.cpu_jobs
        # What people's limits say of a kind of request, until they are given more.
        self.limits: dict[str, dict[Any, tuple[Requirement, tuple[Blocker, ...]]]] = {}
        self._wishers = _wishers(waiting, slots, rules)
        self._is_scarce = any(0 < part < 1 for part in slots.throttle.multipliers.values())

    def contended(self, owner: str) -> bool:
        """Whether somebody else waits for GPUs, or less than all of them may be used."""
        return self._is_scarce or len(self._wishers) > (owner in self._wishers)

    def standing(self, owner: str) -> Standing:
        """Where a person stands with what this pass has given them."""
        return self.people.get(owner) or Standing(owner=owner)

    def trusted(self, owner: str) -> frozenset[str]:
        """Saturated GPUs on which the owner's agreed time counts for more than their use."""
        slots = self.slots
        if not slots.windows or not slots.throttle.saturated:
            return frozenset()
        return windows.trusted(owner, slots.windows, slots.throttle.saturated, self.now)

    def throttle(self, owner: str) -> Throttle:
        """What the controller allows this person."""
        trusted, allowed = self.trusted(owner), self.slots.throttle
        if not trusted:
            return allowed
        whole = dict.fromkeys(trusted, 1.0)
        return replace(allowed, multipliers={**allowed.multipliers, **whole})

    def count(self, ask: Ask) -> None:
        """A job like this has been placed."""
        if ask.requirement.gpus == 0:
            self.cpu_jobs += 1
        elif self.starts is not None and ask.requirement.shares:
            self.starts = max(0, self.starts - 1)
        self.limits.pop(ask.owner, None)
        standing = self.standing(ask.owner)
        self.people[ask.owner] = quotas.after(standing, ask.requirement, ask.lasts)


def _wishers(waiting: Iterable[QueuedJob], slots: Slots, rules: Rules) -> set[str]:
    """Who has a job that some GPUs here could take, and that nothing of their own keeps back."""
    found: set[str] = set()
    tried: set[tuple[str, int]] = set()
    for job in waiting:
        owner, asked = job.owner, job.requirement
        if owner in found or asked.gpus == 0 or job.waits or (owner, id(asked)) in tried:
            continue
        tried.add((owner, id(asked)))
        able = sum(not is_known_to_lack(asked, gpu) for gpu in slots.gpus)
        if able < asked.gpus and slots.gpus:
            continue
        standing = slots.people.get(owner)
        if standing is None or not quotas.refusals(
            asked,
            job.priority,
            job.lasts,
            standing,
            Throttle(),
            contended=False,
            policy=rules.quotas,
        ):
            found.add(owner)
    return found


Gate = Callable[[Ask, Tally], tuple[Blocker, ...]]


def refusals(ask: Ask, tally: Tally) -> tuple[Blocker, ...]:
    """Every reason of every gate."""
    found: tuple[Blocker, ...] = ()
    for gate in GATES:
        found += gate(ask, tally)
    return found


def bars(ask: Ask, tally: Tally, gpus: Sequence[Slot]) -> Mapping[str, Blocker]:
    """Why single GPUs are not for such a job, whether they have room or not, by GPU."""
    slots = tally.slots
    if ask.requirement.gpus == 0:
        return {}
    busy = _pressed(ask, tally, gpus)
    if not slots.windows:
        return busy
    trusted, rules = tally.trusted(ask.owner), tally.rules.windows
    asking = windows.asking(
        ask.owner, ask.requirement, ask.lasts, ask.preemptible, tally.now, rules
    )
    return {
        **{uuid: why for uuid, why in busy.items() if uuid not in trusted},
        **windows.closed_for(asking, slots.windows, gpus, slots.running, tally.now),
    }


def _pressed(ask: Ask, tally: Tally, gpus: Sequence[Slot]) -> dict[str, Blocker]:
    """GPUs beside whose users nothing more is put now, by their use or the utilisation target.

    On an empty one nobody is disturbed, whatever it did a moment ago; one that a job has for itself
    is taken, however busy.
    """
    allowed = tally.slots.throttle
    closed = allowed.closed_gpus.get(CLASSES[ask.priority], {})
    is_full = tally.starts == 0 and CLASSES[ask.priority] is not PriorityClass.USER_INITIATED
    if ask.requirement.exclusive or not (closed or is_full):
        return {}
    occupied = [g for g in gpus if (g.jobs or g.foreign) and not (g.exclusive or g.undeclared)]
    found = {gpu.gpu_uuid: _full(gpu, allowed) for gpu in occupied} if is_full else {}
    return found | {g.gpu_uuid: closed[g.gpu_uuid] for g in occupied if g.gpu_uuid in closed}


def _full(gpu: Slot, allowed: Throttle) -> Blocker:
    """The utilisation target. The same text for the same GPU: blockers are shared by many jobs."""
    why = allowed.target or "the GPUs are as busy as they should be."
    return Blocker(
        code="UtilTarget",
        tier=Tier.MACHINE,
        text=f"No job is put beside the others on GPU {gpu.index} now: {why}",
        requested="1 start",
        available=f"GPU {gpu.index}",
    )


def evictions(tally: Tally) -> tuple[Yield, ...]:
    """Which running jobs must leave, whoever waits."""
    slots, policy = tally.slots, tally.rules.windows
    return window_yields.yields(slots.running, slots.windows, slots.gpus, policy, tally.now)


def _class_is_closed(ask: Ask, tally: Tally) -> tuple[Blocker, ...]:
    """Backpressure."""
    closed = tally.slots.throttle.closed.get(CLASSES[ask.priority])
    return () if closed is None else (closed,)


def _gpus_are_readable(ask: Ask, tally: Tally) -> tuple[Blocker, ...]:
    blocker = tally.slots.blocker
    return () if blocker is None or ask.requirement.gpus == 0 else (blocker,)


def _cpu_places_are_left(ask: Ask, tally: Tally) -> tuple[Blocker, ...]:
    places = tally.policy.cpu_jobs
    if ask.requirement.gpus or tally.cpu_jobs < places:
        return ()
    text = f"All {places} places for jobs without a GPU are taken; yours starts when one ends."
    return (Blocker(code="CpuPlaces", text=text, requested="1 place", available=f"0 of {places}"),)


def _limits_allow_it(ask: Ask, tally: Tally) -> tuple[Blocker, ...]:
    """Quotas. Looked at once for what is alike to them."""
    owner, asked = ask.owner, ask.requirement
    lasts = None if tally.standing(owner).budget is None else ask.lasts
    known = tally.limits.setdefault(owner, {})
    key = (ask.priority, id(asked), lasts)
    if key not in known:
        # The requirement is kept beside, so that its identity is not used again.
        known[key] = (asked, _limits(ask, tally))
    return known[key][1]


def _limits(ask: Ask, tally: Tally) -> tuple[Blocker, ...]:
    return quotas.refusals(
        ask.requirement,
        ask.priority,
        ask.lasts,
        tally.standing(ask.owner),
        tally.throttle(ask.owner),
        contended=tally.contended(ask.owner),
        policy=tally.rules.quotas,
    )


GATES: tuple[Gate, ...] = (
    _limits_allow_it,
    _class_is_closed,
    _gpus_are_readable,
    _cpu_places_are_left,
)
