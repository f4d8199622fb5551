"""Policy: what of a job's request another engine can take over, and what it cannot.

Policy: what follows from the state of a task that another engine has.

The files of the attempt take precedence over the engine's word: they say whether the job has run
and how it ended. The claim file decides whether a nonce may still run, so handing a job over again
never runs it twice.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum

from monitor.facts.accounts import is_person
from monitor.owners.identity.policy import job_cgroup_of, session_uid
from scheduler.execution.engines.facts import Capabilities, TaskState

# Variables of sbatch that a user may set in the environment of a job.
VARIABLES = (
    "SBATCH_ACCOUNT",
    "SBATCH_CONSTRAINT",
    "SBATCH_PARTITION",
    "SBATCH_QOS",
    "SBATCH_RESERVATION",
)
_VALUE = re.compile(r"[\w.,:&|*\[\]()+-]{1,200}")
# Slurm's --nice; a user may lower a priority there, but not raise it.
_NICENESS = {1: 1000, 2: 100}


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRules:
    """Settings of the engine. gpu_types: model as in gpucoord -> type as in gres.conf."""

    options: tuple[str, ...] = ()
    gpu_types: Mapping[str, str] = field(default_factory=dict)
    grace_s: float = 10.0


def niceness_of(priority: int) -> int:
    return _NICENESS.get(priority, 0)


def variables_of(env: Mapping[str, str]) -> dict[str, str]:
    """Those of a job's variables that choose its account, QOS or partition."""
    return {
        name: env[name]
        for name in VARIABLES
        if isinstance(env.get(name), str) and _VALUE.fullmatch(env[name])
    }


def problem_of(
    gpu_model: str,
    capability: str,
    power: float | None,
    gpu_uuid: str,
    share_pct: int | None,
    *,
    is_service: bool,
    rules: EngineRules,
) -> str:
    """Why the engine cannot take a job with these constraints; "" = it can."""
    if is_service:
        return "Model services run on GPUs that gpucoord itself allocates."
    if gpu_model and gpu_model not in rules.gpu_types:
        return (
            f"No GPU type of Slurm is configured for {gpu_model}."
            " An operator can add it to slurm_gpu_types."
        )
    constraints = {
        "a compute capability": capability,
        "a power rank": power,
        "a GPU by its UUID": gpu_uuid,
        "a part of a GPU's time": share_pct,
    }
    wrong = [words for words, value in constraints.items() if value]
    return f"Slurm cannot allocate GPUs by {' or '.join(wrong)}." if wrong else ""


# The decisions that an engine takes instead of gpucoord, in words.

_WORDS = (
    ("order", "order"),
    ("fair_share", "fair share"),
    ("quotas", "quotas"),
    ("windows", "time windows"),
    ("preemption", "preemption"),
)


def decided(capabilities: Capabilities) -> str:
    """As "order, fair share and quotas"; "" = gpucoord decides all of them."""
    words = [word for name, word in _WORDS if getattr(capabilities, name)]
    return " and ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))


def sentence(title: str, host: str, capabilities: Capabilities) -> str:
    """About the jobs that a host hands to this engine; "" = nothing is to be said."""
    words = decided(capabilities)
    if not words:
        return ""
    return (
        f"{title} decides {words} of the jobs that {host} hands to it."
        " The quotas, shares and time windows of gpucoord do not apply to them."
    )


# Whether a process that a job of another engine reports as its own belongs to it.
#
# The account of the job can write the report. Therefore only what the kernel says of the process
# counts: its account, and its cgroup where the engine uses cgroups.


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedProcess:
    """A process as the kernel of its node describes it.

    uid: its real uid, None = unknown. cgroup: text of /proc/PID/cgroup. has_job_cgroup: the engine
    has made a cgroup for the job on this node.
    """

    uid: int | None
    cgroup: str
    has_job_cgroup: bool


def refusal_of(process: ReportedProcess, uid: int, ref: str) -> str:
    """Why it is not a process of Slurm's job `ref`, which runs as `uid`; "" = it can be one."""
    if process.uid is None:
        return "its account cannot be read"
    if process.uid != uid:
        return f"it runs as uid {process.uid}, and the job as uid {uid}"
    # Users can make cgroups of any name in their own part of the tree.
    lines = [line for line in process.cgroup.splitlines() if session_uid(line) is None]
    paths = [path for path in map(job_cgroup_of, lines) if path]
    if any(path.endswith(f"/job_{ref}") for path in paths):
        return ""
    if paths:
        return f"it is in the cgroup {paths[0]}, which is not that of Slurm's job {ref}"
    if process.has_job_cgroup:
        return f"it is outside the cgroup of Slurm's job {ref}"
    if is_person(session_uid(process.cgroup) or 0):
        return "it belongs to a login session"
    return ""


# The longest time that a submission may be under way; then a list without it means it is not there.
SUBMIT_SETTLES = timedelta(seconds=30)
# An ended task may show its files a little later on shared storage.
FILES_SETTLE = timedelta(seconds=10)
# A task that never began and is missing in the answers for this long was lost by the engine.
LOST_UNSTARTED = timedelta(seconds=20)
# A task that has begun and is missing this long, without a result, is lost.
LOST_STARTED = timedelta(minutes=10)
REFUSED_AGAIN = timedelta(minutes=1)
STOP_AGAIN = timedelta(seconds=5)


class Claim(StrEnum):
    """The creator of the attempt's `claimed` file."""

    NONE = "none"
    RUNNER = "runner"
    GIVEN_UP = "given up"


class Phase(StrEnum):
    """QUEUED: the job waits. PLACED: the attempt of this task is open. OVER: neither is true."""

    QUEUED = "queued"
    PLACED = "placed"
    OVER = "over"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskView:
    """All that is known of a task.

    state: None = the newest answer does not contain it. is_wanted: it is still requested as it was
    submitted. missing_since and ended_since: by the engine's answers; None = it is listed, or it
    has not ended. runner_alive: on this host; None = it runs elsewhere, or did not start.
    """

    phase: Phase
    claim: Claim
    ref: str = ""
    state: TaskState | None = None
    is_wanted: bool = True
    is_started: bool = False
    is_recorded: bool = False
    has_result: bool = False
    runner_alive: bool | None = None
    stop_requested: bool = False
    yield_requested: bool = False
    refused: bool = False
    tried_at: datetime | None = None
    answered_at: datetime | None = None
    missing_since: datetime | None = None
    ended_since: datetime | None = None


class TaskAction(StrEnum):
    """The next action for a task.

    SUBMIT       hand it to the engine (again: with the same nonce)
    GIVE_UP      claim its attempt, so that no runner can start it any more
    STOP         tell the engine to end it
    ADOPT        its runner has begun: create the attempt
    RECORD       store the identity of its processes
    YIELD        tell the engine to ask it to leave
    END          it has a result: store it
    LOST         it has begun, and how it ended is unknown
    UNSTARTED    it has ended in the engine without having begun
    CLOSE        nothing is left to do
    """

    NONE = "none"
    SUBMIT = "submit"
    GIVE_UP = "give up"
    STOP = "stop"
    ADOPT = "adopt"
    RECORD = "record"
    YIELD = "yield"
    END = "end"
    LOST = "lost"
    UNSTARTED = "unstarted"
    CLOSE = "close"


def next_task_action(task: TaskView, now: datetime) -> TaskAction:
    """The action that is due now."""
    if task.phase is Phase.PLACED:
        return _of_placed(task, now)
    if task.claim is Claim.RUNNER:
        if task.phase is Phase.QUEUED:
            return TaskAction.ADOPT
        return TaskAction.CLOSE if _is_over(task) or task.has_result else TaskAction.STOP
    if task.claim is Claim.GIVEN_UP:
        # The end of a task that was withdrawn says nothing about its job.
        if task.phase is Phase.QUEUED and task.ended_since is not None and task.is_wanted:
            return TaskAction.UNSTARTED
        return TaskAction.CLOSE if _is_over(task) else TaskAction.STOP
    if task.phase is Phase.OVER or not task.is_wanted:
        return TaskAction.CLOSE if task.tried_at is None else TaskAction.GIVE_UP
    if not task.ref:
        return _of_unacknowledged(task, now)
    is_requeued = task.state is TaskState.WAITING
    if _has_passed(task.ended_since, FILES_SETTLE, now) and not is_requeued:
        return TaskAction.GIVE_UP
    if _has_passed(task.missing_since, LOST_UNSTARTED, now):
        return TaskAction.GIVE_UP
    return TaskAction.NONE


def _of_unacknowledged(task: TaskView, now: datetime) -> TaskAction:
    """Submit again only after an answer that would contain an earlier submission."""
    if task.tried_at is None:
        return TaskAction.SUBMIT
    if task.refused:
        due = now - task.tried_at >= REFUSED_AGAIN
        return TaskAction.SUBMIT if due else TaskAction.NONE
    settled_at = task.tried_at + SUBMIT_SETTLES
    has_looked = task.answered_at is not None and task.answered_at >= settled_at
    return TaskAction.SUBMIT if has_looked and task.state is None else TaskAction.NONE


def _of_placed(task: TaskView, now: datetime) -> TaskAction:
    if task.has_result:
        return TaskAction.END
    if task.is_started and not task.is_recorded:
        return TaskAction.RECORD
    if _has_passed(task.ended_since, FILES_SETTLE, now) and task.runner_alive is not True:
        return TaskAction.LOST
    if _has_passed(task.missing_since, LOST_STARTED, now) and task.runner_alive is not True:
        return TaskAction.LOST
    if task.stop_requested:
        return TaskAction.STOP
    return TaskAction.YIELD if task.yield_requested else TaskAction.NONE


def _is_over(task: TaskView) -> bool:
    """Whether the engine has no such task any more, or never got it."""
    return task.ended_since is not None or task.missing_since is not None


def _has_passed(since: datetime | None, wait: timedelta, now: datetime) -> bool:
    return since is not None and now - since >= wait
