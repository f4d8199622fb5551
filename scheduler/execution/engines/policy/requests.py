"""Policy: what of a job's request another engine can take over, and what it cannot."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from monitor.facts.accounts import is_person
from monitor.owners.identity.policy import job_cgroup_of, session_uid
from scheduler.execution.engines.facts import Capabilities

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
