"""Policy: limits of a user, which block jobs even if GPUs are free.

A share is a weight, which the order of jobs applies (planner/order.py). It limits a user's jobs
only where the quota says so (`cap`), and on single GPUs that other users load, where the throttle's
multipliers reduce it (`reduced`); they never apply to an empty GPU.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TypedDict

from msgspec import Struct

from monitor.facts.thresholds import threshold
from scheduler.facts.blockers import Blocker, BlockerCode, Details, Tier, details
from scheduler.facts.jobs import CLASSES, PRIORITIES, NewJob, PriorityClass, Refusal, Requirement
from scheduler.facts.people import Budget, Quota, UserAccount
from scheduler.facts.plans import Slot, Throttle
from scheduler.facts.units import minutes_left, minutes_taken, size

# Sums of parts of GPUs are not exact.
SLACK = 1e-6
NO_THROTTLE = Throttle()


# Strength with which past use below the share raises the target share.
CATCH_UP = 1.0
# A starting job is charged for this time in advance, so that bursts are not free.
ENTRY_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaPolicy:
    """Fair share, charging and quotas. Daily GPU-minutes are a fixed budget: load, overuse and the
    mode do not scale them, so that a user can plan the day."""

    # fmt: off
    half_life_hours: float = threshold(48.0, "Half-life of past usage", unit="h", ge=1, le=8760,
        help="After this time, usage counts half in a user's fair share.")
    first_job_free: bool = threshold(True, "First job always allowed",
        "A user without a running GPU job may start one beyond the share. On a GPU in use by "
        "other users, the reduced share of that GPU still applies.")
    waiting_jobs: int = threshold(1000, "Maximum waiting jobs per user", ge=1, le=1_000_000,
        help="Each element of an array counts. A value in a quota overrides this. Operators are "
             "exempt.")
    highest_priority: int = threshold(4, "Maximum priority", ge=1, le=5,
        help="From 1 to 5. A value in a quota overrides this. Operators may use 5.")
    # fmt: on


def with_defaults(quota: Quota, policy: QuotaPolicy, *, is_operator: bool) -> Quota:
    """The quota with the policy's figures where it has none; operators have no such limits."""
    if is_operator:
        return quota
    return replace(
        quota,
        queued=policy.waiting_jobs if quota.queued is None else quota.queued,
        priority=policy.highest_priority if quota.priority is None else quota.priority,
    )


def held(requirement: Requirement, gpu_bytes: int | None) -> float:
    """The GPUs that a job reserves: whole GPUs, or the declared part of a shared GPU."""
    if requirement.exclusive or requirement.memory_bytes is None or not gpu_bytes:
        return float(requirement.gpus)
    return requirement.gpus * min(1.0, requirement.memory_bytes / gpu_bytes)


def memory(requirement: Requirement, gpu_bytes: int | None) -> int:
    """The GPU memory that a job reserves; the whole GPU if it declares none."""
    if requirement.exclusive or requirement.memory_bytes is None:
        each = max(gpu_bytes or 0, requirement.memory_bytes or 0)
    else:
        each = requirement.memory_bytes
    return requirement.gpus * each


def minutes(
    requirement: Requirement, lasts: timedelta | None, account: UserAccount
) -> float | None:
    """The maximum of GPU-minutes that the job will use; None = unknown."""
    if lasts is None:
        return None
    return held(requirement, account.capacity.gpu_bytes) * lasts.total_seconds() / 60


def refusals(
    requirement: Requirement,
    priority: int,
    lasts: timedelta | None,
    account: UserAccount,
    throttle: Throttle,
    *,
    policy: QuotaPolicy,
) -> tuple[Blocker, ...]:
    """Blockers from the user's limits."""
    blockers = [
        _gpus(requirement, account),
        _jobs(account),
        _memory(requirement, account),
        _budget(requirement, lasts, account),
        _share(requirement, CLASSES[priority], account, throttle, policy),
    ]
    return tuple(blocker for blocker in blockers if blocker is not None)


def after(account: UserAccount, requirement: Requirement, lasts: timedelta | None) -> UserAccount:
    """The user's account after such a job was placed."""
    gpu_bytes = account.capacity.gpu_bytes
    part = held(requirement, gpu_bytes)
    return replace(
        account,
        gpus=account.gpus + requirement.gpus,
        jobs=account.jobs + 1,
        memory_bytes=account.memory_bytes + memory(requirement, gpu_bytes),
        charge=account.charge + part,
        budget=_debited(account.budget, minutes(requirement, lasts, account), requirement),
    )


def before(
    account: UserAccount,
    requirement: Requirement,
    lasts: timedelta | None,
    ran: timedelta,
) -> UserAccount:
    """The user's account once such a job has ended. ran: its run time, which the budget paid."""
    gpu_bytes = account.capacity.gpu_bytes
    budget, committed = account.budget, minutes(requirement, lasts, account)
    if budget is not None and committed is not None:
        used = min(committed, minutes(requirement, ran, account) or 0.0)
        budget = replace(
            budget,
            committed=max(0.0, budget.committed - committed),
            spent=budget.spent + used,
        )
    return replace(
        account,
        gpus=max(0, account.gpus - requirement.gpus),
        jobs=max(0, account.jobs - 1),
        memory_bytes=max(0, account.memory_bytes - memory(requirement, gpu_bytes)),
        charge=max(0.0, account.charge - held(requirement, gpu_bytes)),
        budget=budget,
    )


def cap(account: UserAccount, urgency: PriorityClass, throttle: Throttle) -> float | None:
    """The GPUs that a user's jobs of this class may hold where the share is a limit; None = any."""
    quota, uuids = account.quota, account.capacity.gpu_uuids
    if quota.share_pct is None or not quota.share_is_limit:
        return None
    if urgency is PriorityClass.USER_INITIATED:
        return quota.share_pct / 100 * len(uuids)
    multipliers = throttle.multipliers
    usable = sum(multipliers.get(uuid, 1.0) > 0 for uuid in uuids) if multipliers else len(uuids)
    return _unreserved(account) * usable


def demand(account: UserAccount, wanted: float) -> float:
    """The GPUs that the user holds and could take besides, within the limits on GPUs.

    wanted: GPUs that waiting jobs request.
    """
    quota, more = account.quota, wanted
    if not may_take_more(account):
        return account.charge
    if quota.gpus is not None:
        more = min(more, quota.gpus - account.gpus)
    most = cap(account, PriorityClass.USER_INITIATED, NO_THROTTLE)
    if most is not None:
        more = min(more, most - account.charge)
    return account.charge + max(0.0, more)


def may_take_more(account: UserAccount) -> bool:
    """Whether the user's limits allow another job with a GPU, however small."""
    quota, budget = account.quota, account.budget
    if quota.gpus is not None and account.gpus >= quota.gpus:
        return False
    if quota.jobs is not None and account.jobs >= quota.jobs:
        return False
    return budget is None or budget.spent + budget.committed < budget.limit


def for_normal_jobs(quota: Quota) -> float:
    """The part of a user's share that jobs which are not user-initiated may take, 0..1."""
    return 1.0 if quota.share_pct is None else 1 - quota.reserved_pct / 100


def _unreserved(account: UserAccount) -> float:
    """The part of each GPU for a user's jobs that are not user-initiated, 0..1."""
    share_pct = account.quota.share_pct
    return for_normal_jobs(account.quota) * (100.0 if share_pct is None else share_pct) / 100


def reduced(
    requirement: Requirement,
    urgency: PriorityClass,
    account: UserAccount,
    gpu: Slot,
    held_there: float,
    throttle: Throttle,
) -> Blocker | None:
    """The blocker of such a job on a GPU that other users load. None: it may start there.

    held_there: the part of the GPU that the user's jobs hold already, 0..1.
    """
    multiplier = throttle.multipliers.get(gpu.gpu_uuid, 1.0)
    if multiplier >= 1 or urgency is PriorityClass.USER_INITIATED:
        return None
    wants = held(requirement, gpu.total_bytes) / requirement.gpus
    most = _unreserved(account) * multiplier
    if held_there + wants <= most + SLACK:
        return None
    why = throttle.reasons.get(gpu.gpu_uuid) or throttle.reason
    return Blocker(
        code=BlockerCode.SHARE_REDUCED,
        tier=Tier.MACHINE,
        gpu=gpu.index,
        requested=f"{100 * wants:.3g} %",
        details=details(
            kind=urgency.value,
            most_pct=round(100 * most, 2),
            wants_pct=round(100 * wants, 2),
            why=why,
        ),
    )


def _debited(
    budget: Budget | None, needed: float | None, requirement: Requirement
) -> Budget | None:
    """A job of unknown length needs the rest of the budget."""
    if budget is None or not requirement.gpus:
        return budget
    rest = max(0.0, budget.limit - budget.spent - budget.committed)
    return replace(budget, committed=budget.committed + (rest if needed is None else needed))


def _gpus(requirement: Requirement, account: UserAccount) -> Blocker | None:
    most, has, wants = account.quota.gpus, account.gpus, requirement.gpus
    if most is None or not wants or has + wants <= most:
        return None
    return _blocker(
        BlockerCode.USER_MAX_GPUS,
        account,
        requested=count(wants, "GPU"),
        available=f"{most} at most" if wants > most else f"{max(0, most - has)} of {most}",
        never=wants > most,
        facts=details(most=most, has=has, wants=wants),
    )


def _jobs(account: UserAccount) -> Blocker | None:
    most, has = account.quota.jobs, account.jobs
    if most is None or has < most:
        return None
    return _blocker(
        BlockerCode.USER_MAX_JOBS,
        account,
        requested="1 job",
        available=f"0 of {most}" if most else "0 at most",
        never=most == 0,
        facts=details(most=most, has=has),
    )


def _memory(requirement: Requirement, account: UserAccount) -> Blocker | None:
    most, has = account.quota.memory_bytes, account.memory_bytes
    wants = memory(requirement, account.capacity.gpu_bytes)
    if most is None or not wants or has + wants <= most:
        return None
    is_more = wants > most
    return _blocker(
        BlockerCode.USER_MAX_MEMORY,
        account,
        requested=size(wants),
        available=f"{size(most)} at most" if is_more else f"{size(max(0, most - has))} free",
        never=is_more,
        facts=details(most=most, has=has, wants=wants),
    )


def _budget(
    requirement: Requirement, lasts: timedelta | None, account: UserAccount
) -> Blocker | None:
    """A job starts only if the budget lasts to its end."""
    budget = account.budget
    if budget is None or not requirement.gpus:
        return None
    left = budget.limit - budget.spent - budget.committed
    needed = minutes(requirement, lasts, account)
    if left > SLACK if needed is None else needed <= left + SLACK:
        return None
    is_more = needed is not None and needed > budget.limit + SLACK
    limit, shown = budget.limit, minutes_left(left)
    wants = None if needed is None else minutes_taken(needed)
    return _blocker(
        BlockerCode.BUDGET_DAY,
        account,
        requested="all that is left" if wants is None else f"{wants:g} GPU-minutes",
        available=f"{limit:g} at most" if is_more else f"{shown:g} of {limit:g}",
        until=None if is_more else budget.resets_at,
        never=is_more,
        facts=details(
            limit=limit,
            left=shown,
            needed=wants,
            resets=f"{budget.resets_at:%a %d %b %H:%M} ({budget.zone})",
        ),
    )


def _share(
    requirement: Requirement,
    urgency: PriorityClass,
    account: UserAccount,
    throttle: Throttle,
    policy: QuotaPolicy,
) -> Blocker | None:
    if not account.quota.share_is_limit or not requirement.gpus:
        return None
    most = cap(account, urgency, throttle)
    if most is None or not account.capacity.gpu_uuids:
        return None
    if policy.first_job_free and account.gpus == 0:
        return None
    wants = held(requirement, account.capacity.gpu_bytes)
    if account.charge + wants <= most + SLACK:
        return None
    facts = _share_facts(account, urgency, account.charge, wants, most)
    return _blocker(BlockerCode.USER_MAX_SHARE, account, **facts)


def above_share(
    account: UserAccount, urgency: PriorityClass, has: float, wants: float, target: float
) -> Blocker:
    """Why a job waits that would exceed its owner's target share while other users wait.

    has, wants, target: in GPUs.
    """
    facts = _share_facts(account, urgency, has, wants, target)
    return _blocker(BlockerCode.SHARE_EXCEEDED, account, tier=Tier.CONTENTION, **facts)


class _ShareFacts(TypedDict):
    """The figures of a share in a blocker."""

    requested: str
    available: str
    facts: Details


def _share_facts(
    account: UserAccount, urgency: PriorityClass, charge: float, wants: float, most: float
) -> _ShareFacts:
    has, takes, shown = _rounded(charge, wants, most)
    return _ShareFacts(
        requested=count(takes, "GPU"),
        available=f"{shown:g}, {has:g} held",
        facts=details(
            kind=urgency.value,
            gpus=len(account.capacity.gpu_uuids),
            most=shown,
            has=has,
            wants=takes,
            over=round(has + takes - shown, 6),
        ),
    )


def _rounded(has: float, wants: float, most: float) -> tuple[float, float, float]:
    """The sum with the fewest decimals, at least two, that show that it exceeds the limit."""
    figures = (has, wants, most)
    for digits in (2, 3, 4, 5):
        shown = round(has, digits), round(wants, digits), round(most, digits)
        if shown[0] + shown[1] > shown[2] + SLACK:
            return shown
    return figures


def _blocker(
    code: BlockerCode,
    account: UserAccount,
    *,
    requested: str,
    available: str,
    facts: Details,
    until: datetime | None = None,
    never: bool = False,
    tier: Tier = Tier.MY_LIMITS,
) -> Blocker:
    """`never`: more than was allowed at submission, or the limit was lowered since."""
    return Blocker(
        code=code,
        tier=Tier.PERSON if never else tier,
        user=account.owner,
        requested=requested,
        available=available,
        until=until,
        never=never,
        details=facts,
    )


def count(number: float, word: str) -> str:
    """A number with its noun: "1 GPU", "2.5 GPUs"."""
    return f"{number:g} {word}{'' if number == 1 else 's'}"


# Jobs of agents: those that may be submitted, and those that must wait.
#
# An agent is a program with a token of its own. Its jobs are the user's jobs and count against the
# user's quota and fair share; these limits are added to it.


MOST_PRIORITY = 3
DEFAULT_PRIORITY = 1
# The planner serves other jobs first, whatever the priority: that orders the agent's own jobs.
PRIORITY_IN_PLANS = 1
DEFAULT_TIME_LIMIT = timedelta(hours=1)


class AgentLimits(Struct, frozen=True, kw_only=True):
    """The limits of an agent. gpu_minutes: a day; a shared GPU counts whole."""

    id: int
    name: str
    running_jobs: int
    gpu_minutes: int


class AgentUse(Struct, frozen=True, kw_only=True):
    """Placed jobs of an agent, and its GPU-minutes of the day.

    committed: what its placed jobs may still use until their time limits. resets_at: the day's end.
    """

    running: int = 0
    spent: float = 0.0
    committed: float = 0.0
    resets_at: datetime | None = None


class AgentJob(Struct, frozen=True, kw_only=True):
    """A waiting job of an agent that no other condition keeps waiting."""

    id: int
    agent: int
    priority: int
    gpus: int
    time_limit: timedelta | None

    @property
    def gpu_minutes(self) -> float:
        return self.gpus * (self.time_limit or DEFAULT_TIME_LIMIT).total_seconds() / 60


def bounded(new: NewJob, limits: AgentLimits) -> NewJob:
    """The job as an agent may run it: preemptible, without a grace period of its own, with a time
    limit, and of the lowest priority unless it has one.
    """
    return replace(
        new,
        agent=limits.id,
        priority=new.priority if new.priority_chosen else DEFAULT_PRIORITY,
        priority_chosen=True,
        time_limit=new.time_limit or DEFAULT_TIME_LIMIT,
        yield_options=replace(new.yield_options, preemptible=True, grace=None),
    )


def agent_refusals(new: NewJob, limits: AgentLimits, index: int | None = None) -> list[Refusal]:
    """The refusals of a bounded job."""
    refusals = []
    if new.priority > MOST_PRIORITY:
        most = f"{MOST_PRIORITY} ({PRIORITIES[MOST_PRIORITY]})"
        text = f"An agent may use priorities up to {most}."
        refusals.append(Refusal(field="priority", text=text, index=index))
    if new.interactive:
        text = "An agent can't open a terminal."
        refusals.append(Refusal(field="interactive", text=text, index=index))
    minutes = new.requirement.gpus * (new.time_limit or DEFAULT_TIME_LIMIT).total_seconds() / 60
    if minutes > limits.gpu_minutes + SLACK:
        text = (
            f"The job may take {minutes_taken(minutes):g} GPU-minutes; this agent has"
            f" {limits.gpu_minutes} a day. Give it a shorter time limit or fewer GPUs."
        )
        refusals.append(Refusal(field="time_limit", text=text, index=index))
    return refusals


def waits(
    jobs: Iterable[AgentJob], limits: Mapping[int, AgentLimits], uses: Mapping[int, AgentUse]
) -> dict[int, tuple[Blocker, ...]]:
    """Blockers of the jobs beyond their agent's limits; the first ones take what is left."""
    by_agent: dict[int, list[AgentJob]] = defaultdict(list)
    for job in jobs:
        by_agent[job.agent].append(job)
    blockers: dict[int, tuple[Blocker, ...]] = {}
    for agent, waiting in by_agent.items():
        use, limit = uses.get(agent, AgentUse()), limits[agent]
        free = limit.running_jobs - use.running
        left = limit.gpu_minutes - use.spent - use.committed
        for job in sorted(waiting, key=lambda job: (-job.priority, job.id)):
            if free <= 0:
                blockers[job.id] = (_too_many(limit),)
            elif job.gpus and job.gpu_minutes > left + SLACK:
                blockers[job.id] = (_agent_budget(limit, use),)
            else:
                free, left = free - 1, left - job.gpu_minutes
    return blockers


def _too_many(limit: AgentLimits) -> Blocker:
    return Blocker(
        code=BlockerCode.AGENT_MAX_JOBS,
        tier=Tier.MY_LIMITS,
        holder=limit.name,
        requested="1 place",
        available=f"0 of {limit.running_jobs}",
        details=details(most=limit.running_jobs),
    )


def _agent_budget(limit: AgentLimits, use: AgentUse) -> Blocker:
    return Blocker(
        code=BlockerCode.AGENT_BUDGET,
        tier=Tier.MY_LIMITS,
        holder=limit.name,
        requested="GPU-minutes",
        until=use.resets_at,
        details=details(limit=limit.gpu_minutes),
    )
