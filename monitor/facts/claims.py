"""Facts: claims on GPUs, and jobs that wait for GPUs."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from msgspec import Struct

from monitor.facts.accounts import submitter


class ClaimKind(StrEnum):
    """script: a job · llm: a model that stays · lock: held through its lock file ·

    unknown: a row with a kind that this version does not have; no user is charged or accused.
    """

    SCRIPT = "script"
    LLM = "llm"
    LOCK = "lock"
    UNKNOWN = "unknown"

    @classmethod
    def _missing_(cls, value: object) -> ClaimKind:
        return cls.UNKNOWN


# The phase of a model that has left its GPU but not ended.
ASLEEP = "sleeping"
# Kinds of the rows of jobs and models.
JOB_KINDS = (ClaimKind.SCRIPT, ClaimKind.LLM)


class ClaimFact(Struct, frozen=True, kw_only=True):
    """A job's hold on a GPU, written by the scheduler.

    `seen`: when a process of it was first seen there; `until`: when it ended. An ended claim is
    kept until the memory of its processes is free. `holder`: of a lock, its holder in words; of a
    job, the owner's agent that submitted it, "" = none.
    `phase`: of a model: "booting", "ready", "busy", "sleeping"; of a worker of a batch: "booting",
    "busy"; of another job "busy" once it has reported progress; "" = unknown.
    `task`: the job's name. `script`: the registered script that it runs; "" = another command.
    `counts_tasks`: it is a model or a worker of a batch.
    """

    job_ref: str
    gpu_uuid: str
    owner: str
    memory_bytes: int | None = None
    exclusive: bool = False
    leader_pid: int | None = None
    leader_start_ticks: int | None = None
    since: datetime | None = None
    kind: ClaimKind = ClaimKind.SCRIPT
    seen: datetime | None = None
    until: datetime | None = None
    row: int | None = None
    holder: str = ""
    phase: str = ""
    task: str = ""
    script: str = ""
    counts_tasks: bool = False


class GpuTask(Struct, frozen=True, kw_only=True):
    """A job or a model on a GPU. progress: 0 to 1. None: it reports none, or its end is unknown.

    name: of a model, that of its service. phase, port, expected_ready: of a model. paired: UUIDs of
    the other GPUs that it has. paired_with: their numbers. agent: the owner's agent that submitted
    it, "" = none. tasks_completed: requests that the model has answered, or items that the worker
    has completed; None: it is neither.
    """

    job_ref: str
    name: str
    owner: str
    progress: float | None = None
    ends_at: datetime | None = None
    tasks_completed: int | None = None
    kind: ClaimKind = ClaimKind.SCRIPT
    phase: str = ""
    script: str = ""
    pid: int | None = None
    port: int | None = None
    since: datetime | None = None
    expected_ready: datetime | None = None
    paired: tuple[str, ...] = ()
    paired_with: tuple[int, ...] = ()
    agent: str = ""

    @property
    def submitter(self) -> str:
        return submitter(self.owner, self.agent)

    @property
    def sleeps(self) -> bool:
        return self.phase == ASLEEP

    @property
    def is_model(self) -> bool:
        return self.kind is ClaimKind.LLM

    @property
    def completed(self) -> str:
        """`23 requests` of a model, `7 items` of a worker; "" = neither, or unknown."""
        if self.tasks_completed is None:
            return ""
        word = "request" if self.is_model else "item"
        return f"{self.tasks_completed} {word}{'' if self.tasks_completed == 1 else 's'}"

    @property
    def has_progress(self) -> bool:
        """Whether a job's progress, expected end, items or other GPUs are known."""
        known = (self.percent, self.ends_at, self.tasks_completed)
        return any(value is not None for value in known) or bool(self.paired_with)

    @property
    def percent(self) -> int | None:
        """Rounded down: 100 % means that it is complete."""
        return None if self.progress is None else int(self.progress * 100)


class Demand(Struct, frozen=True, kw_only=True):
    """A job that waits only because other users hold the GPUs that it needs.

    gpus: how many it asks for. gpu_uuids: which would do, () = any.
    """

    owner: str
    since: datetime
    job_ref: str = ""
    gpus: int = 1
    gpu_uuids: tuple[str, ...] = ()
