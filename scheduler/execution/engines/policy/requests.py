"""Policy: what of a job's request another engine can take over, and what it cannot."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

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
