"""What is done about an incident, step by step: warn, warn again, then act; and what is undone.

Nothing is done unless an operator switched it on, nothing to whom the policy does not name, and
nothing that no warning that reached its owner came before.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from fnmatch import fnmatchcase

from monitor.policy.enforcement_policy import EnforcementPolicy

# Accounts below are the system's, as the kernel's distributions number them.
FIRST_PERSON = 1000
NOBODY = 65534
SYSTEM_USERS = ("root", "daemon", "nobody")
# A warning that could not be written is tried again.
WARN_AGAIN_AFTER = timedelta(minutes=10)


class Step(StrEnum):
    """In the order in which they are taken."""

    WARN = "warn"
    WARN_AGAIN = "warn_again"
    RENICE = "renice"
    LIMIT = "limit"
    FREEZE = "freeze"
    TERMINATE = "terminate"
    KILL = "kill"


WARNINGS = (Step.WARN, Step.WARN_AGAIN)
# What lasts, and is taken back when the incident is over.
UNDOABLE = (Step.RENICE, Step.LIMIT, Step.FREEZE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Accused:
    """The process that an incident is about, as the newest reading has it.

    is_there: that very process (pid and start) is among the processes that were just read.
    """

    host: str
    user: str = ""
    uid: int | None = None
    program: str = ""
    container: str = ""
    job_ref: str = ""
    is_there: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """An incident. is_paused: snoozed or exempted by an operator.

    resumed_at: when the last of what had been done was taken back; then times begin anew.
    """

    rule: str
    is_open: bool
    is_paused: bool
    accused: Accused
    resumed_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """A step that was taken. `reached_at`: when a warning reached its owner, None = not yet."""

    step: Step
    at: datetime
    was_refused: bool = False
    reached_at: datetime | None = None


def spared(case: Case, policy: EnforcementPolicy) -> str | None:
    """Why nothing is ever done to this process; None when the policy's scope names it."""
    who = case.accused
    if who.job_ref:
        return "It is a job of gpucoord, which has other means."
    if not who.user or who.uid is None:
        return "Nobody knows whose it is."
    if who.uid < FIRST_PERSON or who.uid == NOBODY or who.user in SYSTEM_USERS:
        return "It is the system's."
    if case.rule not in policy.rules:
        return "Nothing is done about this rule."
    if not _matches(who.user, policy.users):
        return f"{who.user} is not in the scope."
    if not _matches(who.program, policy.programs):
        return f"{who.program or 'Its program'} is not in the scope."
    if not _matches(who.host, policy.hosts):
        return f"{who.host} is not in the scope."
    if who.container and not _matches(who.container, policy.containers):
        return "Its container is not in the scope."
    return None


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return bool(name) and any(fnmatchcase(name, pattern) for pattern in patterns)


def holds(case: Case, policy: EnforcementPolicy) -> bool:
    """Whether something may be done about it at all, now."""
    return policy.enabled and case.is_open and not case.is_paused and spared(case, policy) is None


def plan(policy: EnforcementPolicy) -> tuple[tuple[Step, timedelta], ...]:
    """The steps that are switched on, each with its time since the first warning."""
    minutes = {
        Step.WARN_AGAIN: policy.warn_again_minutes,
        Step.RENICE: policy.renice_minutes,
        Step.LIMIT: policy.limit_minutes,
        Step.FREEZE: policy.freeze_minutes,
        Step.TERMINATE: policy.terminate_minutes,
    }
    steps = [(step, timedelta(minutes=m)) for step, m in minutes.items() if m > 0]
    if policy.terminate_minutes > 0 and policy.kill_minutes > 0:
        whole = policy.terminate_minutes + policy.kill_minutes
        steps.append((Step.KILL, timedelta(minutes=whole)))
    return tuple(steps)


def next_step(
    case: Case, taken: Sequence[Taken], policy: EnforcementPolicy, now: datetime
) -> Step | None:
    """What is to be done now; one step at a time, each after its own time."""
    if not holds(case, policy) or not case.accused.is_there:
        return None
    by_step = {found.step: found for found in taken}
    first = by_step.get(Step.WARN)
    if first is None or (first.was_refused and now - first.at >= WARN_AGAIN_AFTER):
        return Step.WARN
    warnings = [by_step[step] for step in WARNINGS if step in by_step]
    reached = [found.reached_at for found in warnings if not found.was_refused]
    # A warning that is still on its way holds everything: first it must be there.
    if first.was_refused or first.reached_at is None or None in reached:
        return None
    begun = max(first.reached_at, case.resumed_at or first.reached_at)
    last = max(at for at in reached if at is not None)
    times = plan(policy)
    for step, after in times:
        if step in by_step:
            continue
        if now - begun < after or now < _earliest(step, dict(times), taken):
            return None
        grace = timedelta(minutes=policy.grace_minutes)
        return step if step in WARNINGS or now - last >= grace else None
    return None


def _earliest(step: Step, after: dict[Step, timedelta], taken: Sequence[Taken]) -> datetime:
    """As long after the last action as the policy has between the two, whatever was missed."""
    actions = [found for found in taken if found.step not in WARNINGS]
    latest = max(actions or taken, key=lambda found: found.at)
    if not actions:
        return latest.at
    return latest.at + max(timedelta(0), after[step] - after.get(latest.step, timedelta(0)))
