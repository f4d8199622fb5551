"""Policy: what a person's own limits keep from starting, though there may be room for it.

The cap of a person is their share of the GPUs, each counted by the throttle's multiplier; a part of
it is kept for user-initiated jobs, for which every GPU counts whole. It binds only where something
is scarce: others wait, or a GPU counts less than whole.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from scheduler.blockers import OTHERS_LOAD, Blocker, Tier
from scheduler.jobs import CLASSES, PriorityClass, Requirement
from scheduler.people import Budget, Standing
from scheduler.plans import Throttle
from scheduler.units import size

# Sums of parts of GPUs are not exact.
SLACK = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaPolicy:
    """How use is remembered, and how far it decides who is next."""

    half_life_hours: float = field(
        default=48.0,
        metadata={
            "label": "Half-life of past use",
            "help": "After this time, use counts half in a person's fair share.",
            "unit": "h",
            "least": 1,
            "most": 8760,
        },
    )
    catch_up: float = field(
        default=1.0,
        metadata={
            "label": "Catching up",
            "help": "How strongly who had less than their part gets more now; 0 = never.",
            "least": 0,
            "most": 10,
        },
    )
    entry_hours: float = field(
        default=1.0,
        metadata={
            "label": "Charged at a start",
            "help": "A job counts as if it had run for so long, so that a burst is not free.",
            "unit": "h",
            "least": 0,
            "most": 48,
        },
    )
    longest_gap_s: float = field(
        default=15.0,
        metadata={
            "label": "Longest gap",
            "help": "Of a longer time without readings, only so much is charged to those seen.",
            "unit": "s",
            "least": 5,
            "most": 600,
        },
    )
    first_job_free: bool = field(
        default=True,
        metadata={
            "label": "One job is always possible",
            "help": "Who has no job on a GPU may start one beyond the share, if GPUs count whole.",
        },
    )


def held(requirement: Requirement, gpu_bytes: int | None) -> float:
    """How many GPUs a job keeps from others: whole ones, or the declared part of a shared one."""
    if requirement.exclusive or requirement.memory_bytes is None or not gpu_bytes:
        return float(requirement.gpus)
    return requirement.gpus * min(1.0, requirement.memory_bytes / gpu_bytes)


def memory(requirement: Requirement, gpu_bytes: int | None) -> int:
    """The GPU memory that it keeps from others; who does not declare it keeps the whole GPU."""
    if requirement.exclusive or requirement.memory_bytes is None:
        each = max(gpu_bytes or 0, requirement.memory_bytes or 0)
    else:
        each = requirement.memory_bytes
    return requirement.gpus * each


def minutes(requirement: Requirement, lasts: timedelta | None, standing: Standing) -> float | None:
    """The GPU-minutes that it will take at most; None = nobody can tell."""
    if lasts is None:
        return None
    return held(requirement, standing.capacity.gpu_bytes) * lasts.total_seconds() / 60


def refusals(
    requirement: Requirement,
    priority: int,
    lasts: timedelta | None,
    standing: Standing,
    throttle: Throttle,
    *,
    contended: bool,
    policy: QuotaPolicy,
) -> tuple[Blocker, ...]:
    """Why the person's limits do not let this start now. `contended`: somebody else waits."""
    found = [
        _gpus(requirement, standing),
        _jobs(standing),
        _memory(requirement, standing),
        _budget(requirement, lasts, standing),
        _share(requirement, CLASSES[priority], standing, throttle, contended, policy),
    ]
    return tuple(blocker for blocker in found if blocker is not None)


def after(standing: Standing, requirement: Requirement, lasts: timedelta | None) -> Standing:
    """Where the person stands once such a job has been placed."""
    gpu_bytes = standing.capacity.gpu_bytes
    part = held(requirement, gpu_bytes)
    return replace(
        standing,
        gpus=standing.gpus + requirement.gpus,
        jobs=standing.jobs + 1,
        memory_bytes=standing.memory_bytes + memory(requirement, gpu_bytes),
        charge=standing.charge + part,
        budget=_debited(standing.budget, minutes(requirement, lasts, standing), requirement),
    )


def cap(standing: Standing, urgency: PriorityClass, throttle: Throttle) -> float:
    """How many GPUs a person's jobs of this class may hold while something is scarce.

    Without an agreed share nothing is reserved in it: who has the machine alone may take all of it.
    """
    quota, uuids = standing.quota, standing.capacity.gpu_uuids
    share = (100.0 if quota.share_pct is None else quota.share_pct) / 100
    if urgency is PriorityClass.USER_INITIATED:
        return share * len(uuids)
    multipliers = throttle.multipliers
    effective = sum(multipliers.get(uuid, 1.0) for uuid in uuids) if multipliers else len(uuids)
    reserved = 0.0 if quota.share_pct is None else quota.reserved_pct
    return share * effective * (1 - reserved / 100)


def _debited(
    budget: Budget | None, needed: float | None, requirement: Requirement
) -> Budget | None:
    """Who can't say how long counts as all that is left."""
    if budget is None or not requirement.gpus:
        return budget
    rest = max(0.0, budget.limit - budget.spent - budget.committed)
    return replace(budget, committed=budget.committed + (rest if needed is None else needed))


def _gpus(requirement: Requirement, standing: Standing) -> Blocker | None:
    most, has, wants = standing.quota.gpus, standing.gpus, requirement.gpus
    if most is None or not wants or has + wants <= most:
        return None
    if wants > most:
        text = f"You ask for {_count(wants, 'GPU')}, and your jobs may hold {most} at a time."
        return _never("UserMaxGpus", text, _count(wants, "GPU"), f"{most} at most")
    text = (
        f"Your jobs may hold {_count(most, 'GPU')} at a time; they hold {has}, and this one asks"
        f" for {wants}."
    )
    return _blocker("UserMaxGpus", text, _count(wants, "GPU"), f"{max(0, most - has)} of {most}")


def _jobs(standing: Standing) -> Blocker | None:
    most, has = standing.quota.jobs, standing.jobs
    if most is None or has < most:
        return None
    if most == 0:
        return _never("UserMaxJobs", "You may run no jobs.", "1 job", "0 at most")
    run = "runs" if has == 1 else "run"
    text = f"You may run {_count(most, 'job')} at a time; {has} {run} now."
    return _blocker("UserMaxJobs", text, "1 job", f"0 of {most}")


def _memory(requirement: Requirement, standing: Standing) -> Blocker | None:
    most, has = standing.quota.memory_bytes, standing.memory_bytes
    wants = memory(requirement, standing.capacity.gpu_bytes)
    if most is None or not wants or has + wants <= most:
        return None
    if wants > most:
        text = f"This job takes {size(wants)} of GPU memory; your jobs may hold {size(most)}."
        return _never("UserMaxMemory", text, size(wants), f"{size(most)} at most")
    text = (
        f"Your jobs may hold {size(most)} of GPU memory at a time; they hold {size(has)}, and this"
        f" one takes {size(wants)}."
    )
    return _blocker("UserMaxMemory", text, size(wants), f"{size(max(0, most - has))} free")


def _budget(
    requirement: Requirement, lasts: timedelta | None, standing: Standing
) -> Blocker | None:
    """Only what can finish starts. The figures go in steps: the reason is not told each minute."""
    budget = standing.budget
    if budget is None or not requirement.gpus:
        return None
    left = budget.limit - budget.spent - budget.committed
    needed = minutes(requirement, lasts, standing)
    if left > SLACK if needed is None else needed <= left + SLACK:
        return None
    if needed is not None and needed > budget.limit + SLACK:
        text = f"It may take {needed:.0f} GPU-minutes; you may use {budget.limit:.0f} a day."
        return _never("BudgetDay", text, f"{needed:.0f} GPU-minutes", f"{budget.limit:.0f} at most")
    step = max(1.0, budget.limit / 20)
    about = max(0.0, left) // step * step
    asks = (
        "and nobody can tell how long this one takes; give it a time limit"
        if needed is None
        else (f"and this one may take {needed:.0f}")
    )
    reset = f"{budget.resets_at:%a %d %b %H:%M} ({budget.zone})"
    text = (
        f"Of your {budget.limit:.0f} GPU-minutes a day about {about:.0f} are left beside what your"
        f" running jobs may still take, {asks}. The day ends {reset}."
    )
    wants = "all that is left" if needed is None else f"{needed:.0f} GPU-minutes"
    available = f"about {about:.0f} of {budget.limit:.0f}"
    return _blocker("BudgetDay", text, wants, available, until=budget.resets_at)


def _share(
    requirement: Requirement,
    urgency: PriorityClass,
    standing: Standing,
    throttle: Throttle,
    contended: bool,
    policy: QuotaPolicy,
) -> Blocker | None:
    scarce = urgency is not PriorityClass.USER_INITIATED and _scarce(standing, throttle)
    uuids = standing.capacity.gpu_uuids
    if not requirement.gpus or not uuids or not (contended or scarce):
        return None
    if policy.first_job_free and standing.gpus == 0 and not scarce:
        return None
    wants, most = held(requirement, standing.capacity.gpu_bytes), cap(standing, urgency, throttle)
    if standing.charge + wants <= most + SLACK:
        return None
    has = round(standing.charge * 2) / 2
    holds = f"about {has:g}" if has else "none"
    share = standing.quota.share_pct
    yours = f"Your share is {100 if share is None else share:g} % of {_count(len(uuids), 'GPU')}"
    now = f" ({throttle.reason})" if scarce and throttle.reason else ""
    text = (
        f"{yours}; {urgency} jobs may take {most:.3g} of them now{now}. Yours hold {holds},"
        f" and this one takes {wants:.3g}."
    )
    fits = scarce and standing.charge + wants <= cap(standing, urgency, Throttle()) + SLACK
    available = f"{most:.3g}, {has:g} held"
    holder = OTHERS_LOAD if fits else None
    return _blocker("ShareExceeded", text, _count(round(wants, 2), "GPU"), available, holder=holder)


def _scarce(standing: Standing, throttle: Throttle) -> bool:
    named = throttle.multipliers
    return bool(named) and any(named.get(uuid, 1.0) < 1 for uuid in standing.capacity.gpu_uuids)


def _never(code: str, text: str, requested: str, available: str) -> Blocker:
    """More than was allowed when it was submitted, or the limit was lowered since."""
    return Blocker(
        code=code,
        tier=Tier.PERSON,
        text=f"{text} Ask an operator for more, or cancel it and ask for less.",
        requested=requested,
        available=available,
    )


def _blocker(
    code: str,
    text: str,
    requested: str,
    available: str,
    until: datetime | None = None,
    holder: str | None = None,
) -> Blocker:
    return Blocker(
        code=code,
        text=text,
        tier=Tier.MY_LIMITS,
        requested=requested,
        available=available,
        until=until,
        holder=holder,
    )


def _count(number: float, word: str) -> str:
    return f"{number:g} {word}{'' if number == 1 else 's'}"
