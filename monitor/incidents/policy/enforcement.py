"""Enforcement plan of an incident: warn, warn again, then act; lasting steps are undone.

Enforcement acts only if an operator enabled it, only within the scope of the policy, and only
after a warning has reached the owner. The texts of the steps are below.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from fnmatch import fnmatchcase

from msgspec import Struct

from monitor.facts.accounts import is_person
from monitor.facts.incidents import ENFORCEABLE, HOG_RULES, IDLE_HELD, NEUTRAL_UNLESS_HOG
from monitor.facts.thresholds import threshold


@dataclass(frozen=True, slots=True)
class EnforcementPolicy:
    """Automatic steps against processes that harm other users."""

    # fmt: off
    enabled: bool = threshold(False, "Enforce",
        "Take the steps below against processes with open incidents.")
    dry_run: bool = threshold(True, "Dry run",
        "Only report each step, in events and on the incident's page.")
    users: tuple[str, ...] = threshold((), "Users",
        "Act on processes of these users; * = all users. Processes of root and of system accounts "
        "are always exempt.")
    programs: tuple[str, ...] = threshold(("*",), "Programs",
        "Act on these programs; wildcards such as python* are allowed.")
    containers: tuple[str, ...] = threshold((), "Containers",
        "Also act on processes in these containers; wildcards are allowed.")
    hosts: tuple[str, ...] = threshold(("*",), "Hosts",
        "Act on these hosts; wildcards are allowed.")
    rules: tuple[str, ...] = threshold((*HOG_RULES, IDLE_HELD), "Rules", choices=ENFORCEABLE,
        help="Act on incidents of these rules.")
    warn_again_minutes: float = threshold(30, "Second warning", unit="min", ge=0, le=10_080,
        help="Time after the first warning. 0 = skip this step.")
    renice_minutes: float = threshold(45, "Lower CPU and disk priority",
        unit="min", ge=0, le=10_080,
        help="Time after the first warning. 0 = skip this step.")
    limit_minutes: float = threshold(60, "Limit CPU and memory", unit="min", ge=0, le=10_080,
        help="Time after the first warning; needs a cgroup that gpucoord manages. 0 = skip this "
             "step.")
    freeze_minutes: float = threshold(0, "Duty-cycle the process", unit="min", ge=0, le=10_080,
        help="Time after the first warning; the process is then stopped for part of the time. 0 = "
             "skip this step.")
    terminate_minutes: float = threshold(0, "Terminate (SIGTERM)", unit="min", ge=0, le=10_080,
        help="Time after the first warning. 0 = skip this step.")
    kill_minutes: float = threshold(0, "Kill (SIGKILL)", unit="min", ge=0, le=10_080,
        help="Time after SIGTERM. 0 = never.")
    grace_minutes: float = threshold(10, "Time to react", unit="min", ge=1, le=10_080,
        help="Minimum time between a delivered warning and the next step.")
    memory_gib: float = threshold(0, "Memory limit", unit="GiB", ge=0, le=65_536,
        help="Host memory available to a limited process. 0 = no limit.")
    # fmt: on

    def conflicts(self) -> dict[str, str]:
        """Steps that are not left out must be in ascending order of time."""
        order = (
            "warn_again_minutes",
            "renice_minutes",
            "limit_minutes",
            "freeze_minutes",
            "terminate_minutes",
        )
        texts: dict[str, str] = {}
        previous, latest = "", 0.0
        for name in order:
            minutes = getattr(self, name)
            if minutes and minutes < latest:
                texts[name] = f"it must not come before {previous}"
            if minutes:
                previous, latest = name, minutes
        return texts


# Nice value of a process whose priority is lowered; 19 is the lowest priority.
NICE = 10
# CPU cores available to a limited process.
CPU_CORES = 1.0
# Duty cycle: seconds in which the process runs, and is stopped.
RUN_S, STOP_S = 10.0, 10.0
SYSTEM_USERS = ("root", "daemon", "nobody")
# The pause before a warning that could not be written is tried again.
WARN_AGAIN_AFTER = timedelta(minutes=10)


class Step(StrEnum):
    """The steps in their order."""

    WARN = "warn"
    WARN_AGAIN = "warn_again"
    RENICE = "renice"
    LIMIT = "limit"
    FREEZE = "freeze"
    TERMINATE = "terminate"
    KILL = "kill"


WARNINGS = (Step.WARN, Step.WARN_AGAIN)
# Lasting steps: they are undone when the incident closes.
UNDOABLE = (Step.RENICE, Step.LIMIT, Step.FREEZE)


class AccusedProcess(Struct, frozen=True, kw_only=True):
    """The process of an incident in the newest snapshot.

    is_there: a process with this pid and start time is in the snapshot.
    """

    host: str
    user: str = ""
    uid: int | None = None
    program: str = ""
    container: str = ""
    job_ref: str = ""
    is_there: bool = False


class EnforcementCase(Struct, frozen=True, kw_only=True):
    """An incident.

    is_hog: above the own share while others waited, or memory held idle. is_paused: snoozed or
    exempted by an operator. resumed_at: when the last steps were undone: the plan starts again.
    """

    rule: str
    is_hog: bool
    is_open: bool
    is_paused: bool
    accused: AccusedProcess
    resumed_at: datetime | None = None


class StepRecord(Struct, frozen=True, kw_only=True):
    """A past step. `reached_at`: when a warning reached its owner; None = not yet."""

    step: Step
    at: datetime
    was_refused: bool = False
    reached_at: datetime | None = None


def never(accused: AccusedProcess) -> str | None:
    """Why gpucoord ends or limits this process under no policy, and for no operator."""
    if accused.job_ref:
        return "It is a job of gpucoord: the scheduler handles it."
    if not accused.user or accused.uid is None:
        return "Its owner is unknown."
    if not is_person(accused.uid) or accused.user in SYSTEM_USERS:
        return "It belongs to a system account."
    return None


def exclusion_reason(case: EnforcementCase, policy: EnforcementPolicy) -> str | None:
    """Why enforcement never acts on this process; None if it is within the scope."""
    accused = case.accused
    if problem := never(accused):
        return problem
    if case.rule not in policy.rules:
        return "The rule is not in the scope."
    if case.rule in NEUTRAL_UNLESS_HOG and not case.is_hog:
        return "Its use takes nothing from a waiting job."
    if not _matches(accused.user, policy.users):
        return f"{accused.user} is not in the scope."
    if not _matches(accused.program, policy.programs):
        return f"{accused.program or 'Its program'} is not in the scope."
    if not _matches(accused.host, policy.hosts):
        return f"{accused.host} is not in the scope."
    if accused.container and not _matches(accused.container, policy.containers):
        return "Its container is not in the scope."
    return None


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return bool(name) and any(fnmatchcase(name, pattern) for pattern in patterns)


def is_enforceable(case: EnforcementCase, policy: EnforcementPolicy) -> bool:
    """Whether enforcement may act on the incident now."""
    return (
        policy.enabled
        and case.is_open
        and not case.is_paused
        and exclusion_reason(case, policy) is None
    )


def plan(policy: EnforcementPolicy) -> tuple[tuple[Step, timedelta], ...]:
    """The enabled steps, each with its time since the first warning."""
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
    case: EnforcementCase,
    steps_taken: Sequence[StepRecord],
    policy: EnforcementPolicy,
    now: datetime,
) -> Step | None:
    """The step that is due now; None = no step is due."""
    if not is_enforceable(case, policy) or not case.accused.is_there:
        return None
    by_step = {finding.step: finding for finding in steps_taken}
    first = by_step.get(Step.WARN)
    if first is None or (first.was_refused and now - first.at >= WARN_AGAIN_AFTER):
        return Step.WARN
    warnings = [by_step[step] for step in WARNINGS if step in by_step]
    reached = [finding.reached_at for finding in warnings if not finding.was_refused]
    # No step before every warning sent has reached its owner.
    if first.was_refused or first.reached_at is None or None in reached:
        return None
    begun = max(first.reached_at, case.resumed_at or first.reached_at)
    last = max(at for at in reached if at is not None)
    times = plan(policy)
    for step, after in times:
        if step in by_step:
            continue
        if now - begun < after or now < _earliest(step, dict(times), steps_taken):
            return None
        grace = timedelta(minutes=policy.grace_minutes)
        return step if step in WARNINGS or now - last >= grace else None
    return None


def _earliest(
    step: Step, after: dict[Step, timedelta], steps_taken: Sequence[StepRecord]
) -> datetime:
    """The earliest time of `step`: after a downtime, steps keep their distance to each other."""
    actions = [since for since in steps_taken if since.step not in WARNINGS]
    latest = max(actions or steps_taken, key=lambda since: since.at)
    if not actions:
        return latest.at
    return latest.at + max(timedelta(0), after[step] - after.get(latest.step, timedelta(0)))


# Texts of enforcement steps: done, dry run, announced and undone.

TITLES = {
    Step.WARN: "Warning",
    Step.WARN_AGAIN: "Second warning",
    Step.RENICE: "Lower priority",
    Step.LIMIT: "CPU and memory limit",
    Step.FREEZE: "Duty cycle (stop and continue)",
    Step.TERMINATE: "Terminate",
    Step.KILL: "Kill",
}
DID = {
    Step.WARN: "Sent a warning to the owner of {}",
    Step.WARN_AGAIN: "Sent a second warning to the owner of {}",
    Step.RENICE: "Lowered the priority of {}",
    Step.LIMIT: "Limited the CPU and memory of {}",
    Step.FREEZE: "Started to stop and continue {} in turns",
    Step.TERMINATE: "Sent SIGTERM to {}",
    Step.KILL: "Killed {}",
}
WOULD = {
    Step.WARN: "Would warn the owner of {}",
    Step.WARN_AGAIN: "Would warn the owner of {} again",
    Step.RENICE: "Would lower the priority of {}",
    Step.LIMIT: "Would limit the CPU and memory of {}",
    Step.FREEZE: "Would stop and continue {} in turns",
    Step.TERMINATE: "Would send SIGTERM to {}",
    Step.KILL: "Would kill {}",
}
UNDID = {
    Step.RENICE: "Restored the priority of {}",
    Step.LIMIT: "Lifted the limits of {}",
    Step.FREEZE: "Resumed {}",
}
TO_COME = {
    Step.RENICE: "lower its priority",
    Step.LIMIT: "limit its CPU and memory",
    Step.FREEZE: "stop it for part of the time",
    Step.TERMINATE: "terminate it (SIGTERM)",
    Step.KILL: "kill it (SIGKILL)",
}


def process(program: str, pid: int | None, user: str, gpu_index: int | None) -> str:
    """python (PID 12345, alice) on GPU 2."""
    where = "" if gpu_index is None else f" on GPU {gpu_index}"
    owner = f", {user}" if user else ""
    return f"{program or 'process'} (PID {pid}{owner}){where}"
