"""Facts: states of a GPU with their legal transitions, and reasons why it takes no new work."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


class GpuState(StrEnum):
    """idle: not in use · external: used or locked outside gpucoord only ·

    booting_script, booting_llm: claimed by a job or model without a process on it yet ·
    script_busy: a job runs · llm_ready, llm_busy: a model is idle, serves ·
    cooling: the job has ended, its memory is not free yet · throttled: by its condition ·
    paused: by an operator · failing: answers with errors · lost: does not answer.
    """

    IDLE = "idle"
    BOOTING_LLM = "booting_llm"
    BOOTING_SCRIPT = "booting_script"
    LLM_READY = "llm_ready"
    LLM_BUSY = "llm_busy"
    SCRIPT_BUSY = "script_busy"
    COOLING = "cooling"
    THROTTLED = "throttled"
    PAUSED = "paused"
    EXTERNAL = "external"
    FAILING = "failing"
    LOST = "lost"


class IllegalGpuTransition(Exception):
    """A transition that the table does not allow: a fault of gpucoord, not of the GPU."""


# Imposed from outside, at any time and in any state.
IMPOSED = frozenset({GpuState.LOST, GpuState.FAILING, GpuState.PAUSED, GpuState.THROTTLED})
_FREE = {GpuState.IDLE, GpuState.EXTERNAL}
_BOOTS = {GpuState.BOOTING_LLM, GpuState.BOOTING_SCRIPT}
_MODEL = {GpuState.LLM_READY, GpuState.LLM_BUSY}
# A GPU with a job passes through booting_* and cooling. Of several jobs on a GPU, one that boots
# or works takes precedence over an idle model.
_WORK: dict[GpuState, set[GpuState]] = {
    GpuState.IDLE: {GpuState.EXTERNAL, GpuState.COOLING, *_BOOTS},
    GpuState.EXTERNAL: {GpuState.IDLE, GpuState.COOLING, *_BOOTS},
    GpuState.BOOTING_SCRIPT: {
        GpuState.SCRIPT_BUSY, GpuState.BOOTING_LLM, GpuState.COOLING, *_MODEL, *_FREE
    },
    GpuState.BOOTING_LLM: {GpuState.BOOTING_SCRIPT, GpuState.COOLING, *_MODEL, *_FREE},
    GpuState.SCRIPT_BUSY: {GpuState.COOLING, *_BOOTS, *_MODEL},
    # A model that goes to sleep leaves an idle GPU.
    GpuState.LLM_READY: {GpuState.LLM_BUSY, GpuState.COOLING, *_FREE, *_BOOTS},
    GpuState.LLM_BUSY: {GpuState.LLM_READY, GpuState.COOLING, *_FREE, *_BOOTS},
    GpuState.COOLING: {*_FREE, *_BOOTS},
}  # fmt: skip
TRANSITIONS: dict[GpuState, frozenset[GpuState]] = {
    **{old: frozenset(new | IMPOSED) for old, new in _WORK.items()},
    **{old: frozenset(set(GpuState) - {old}) for old in IMPOSED},
}


def check_transition(old: GpuState | None, new: GpuState) -> None:
    """Raise IllegalGpuTransition unless a GPU in `old` may be in `new` next. None = it is new."""
    if old is not None and old is not new and new not in TRANSITIONS[old]:
        raise IllegalGpuTransition(f"a GPU that is {old} can't be {new} next")


class ClosureKind(StrEnum):
    """paused: by an operator; running jobs may end · quarantined: memory was not given back ·

    lock_file: its lock file can't be used · unknown: a row with a kind that this version does
    not have.
    """

    PAUSED = "paused"
    QUARANTINED = "quarantined"
    LOCK_FILE = "lock_file"
    UNKNOWN = "unknown"

    @classmethod
    def _missing_(cls, value: object) -> ClosureKind:
        return cls.UNKNOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosureFact:
    """One reason why a GPU takes no new work. `by`: the operator; "" = gpucoord itself.

    `pid` is the process of an ended job that still holds memory there.
    """

    gpu_uuid: str
    kind: ClosureKind
    since: datetime
    reason: str = ""
    by: str = ""
    job_ref: str = ""
    pid: int | None = None
    memory_bytes: int | None = None

    @property
    def text(self) -> str:
        """Why, for a card: "Paused by olga: New fan." """
        if self.kind is ClosureKind.PAUSED:
            return f"Paused by {self.by}{f': {self.reason}' if self.reason else '.'}"
        if self.kind is ClosureKind.LOCK_FILE:
            return self.reason
        if self.kind is ClosureKind.UNKNOWN:
            return "Closed for a reason that this version of gpucoord does not know."
        held = "memory" if self.memory_bytes is None else f"{self.memory_bytes / 1024**3:.1f} GiB"
        whose = f"of job {self.job_ref} (pid {self.pid})"
        return f"In quarantine: the job has ended, but {held} {whose} are not back."
