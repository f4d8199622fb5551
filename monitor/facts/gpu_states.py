"""Facts: condition and states of a GPU, their legal transitions, and why it takes no new work."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from msgspec import Struct

# Condition of a GPU, and the faults that it counts. Unknown is None, never zero.


class Condition(StrEnum):
    """healthy: takes work · throttled: too hot or slowed down · failing: its answers or its

    memory can't be trusted · lost: not there. Only a healthy one gets new work.
    """

    HEALTHY = "healthy"
    THROTTLED = "throttled"
    FAILING = "failing"
    LOST = "lost"


class Ailment(Struct, frozen=True):
    """A problem of a GPU. `code` is a stable name; `text` contains no changing number.

    `condition` is the effect on the GPU; HEALTHY = worth knowing, work goes on.
    """

    code: str
    condition: Condition
    text: str

    @property
    def title(self) -> str:
        """The code in words: "Repair pending", "ECC uncorrected", "XID 79"."""
        words = self.code.split("_")
        first = words[0] if words[0] in ("ECC", "XID") else words[0].capitalize()
        return " ".join([first, *(word.lower() for word in words[1:])])


class Xid(Struct, frozen=True):
    """An error that the driver reported of a GPU, by NVIDIA's number."""

    gpu_uuid: str
    code: int


class HealthReading(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Counters of faults and slow-downs of one GPU since its driver was loaded.

    A probe leaves everything from `hot` on unset. These fields are the memory of the health check:
    they are stored with the snapshot, so that the next process continues from them.
    """

    gpu_uuid: str
    clock_reasons: int | None = None
    ecc_corrected: int | None = None
    ecc_uncorrected: int | None = None
    retired_pages: int | None = None
    retired_pending: bool | None = None
    remapped_corrected: int | None = None
    remapped_uncorrected: int | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    hot: bool | None = None
    # The highest temperature since the GPU became too hot.
    hottest_c: float | None = None
    slow_since: datetime | None = None
    slow_at: datetime | None = None
    spinning_since: datetime | None = None
    over_power_since: datetime | None = None
    # Since when a call of the driver about it has failed at each sweep.
    calls_failing_since: datetime | None = None
    # (XID, time) of the XIDs that keep the GPU closed.
    xids: tuple[tuple[int, datetime], ...] = ()
    ailments: tuple[Ailment, ...] = ()
    # Codes of the ailments that were reported although the GPU works; kept while it is away.
    reported: tuple[str, ...] | None = None

    def has(self, code: str) -> bool:
        return any(ailment.code == code for ailment in self.ailments)


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


class ClosureFact(Struct, frozen=True, kw_only=True):
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
