"""Facts: a job, where it is (state), how it ended (outcome), and which moves are legal."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum


class JobState(StrEnum):
    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    FINISHED = "finished"


class Outcome(StrEnum):
    """succeeded: exit 0 · failed: any other exit or signal, or it could not start ·

    cancelled: by a person · timed_out: over its time limit · lost: nobody can tell how it ended.
    """

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TIMED_OUT = "timed_out"
    LOST = "lost"


# The one table of legal moves; the database constraint and the admin read it too.
TRANSITIONS: dict[JobState, frozenset[JobState]] = {
    JobState.QUEUED: frozenset({JobState.STARTING, JobState.FINISHED}),
    JobState.STARTING: frozenset(
        {JobState.QUEUED, JobState.RUNNING, JobState.STOPPING, JobState.FINISHED}
    ),
    JobState.RUNNING: frozenset({JobState.STOPPING, JobState.FINISHED}),
    JobState.STOPPING: frozenset({JobState.FINISHED}),
    JobState.FINISHED: frozenset(),
}

PRIORITIES = {5: "urgent", 4: "high", 3: "normal", 2: "low", 1: "background"}


class IllegalTransition(Exception):
    """A move that the table does not know: a fault of ours, never of a person."""


def check_transition(old: JobState, new: JobState) -> None:
    """Raise IllegalTransition unless `old` may become `new`."""
    if new not in TRANSITIONS[old]:
        raise IllegalTransition(f"a {old} job can't become {new}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """What a job asks of the GPUs: how many, how much memory on each, alone or shared.

    memory_bytes None = not declared. gpus 0 = a job without a GPU.
    """

    gpus: int = 1
    memory_bytes: int | None = None
    exclusive: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NewJob:
    """What a person submits. Either `command` (a shell line) or `argv` (runs as it is)."""

    command: str = ""
    argv: tuple[str, ...] = ()
    name: str = ""
    cwd: str = ""
    env: dict[str, str] = field(default_factory=dict)
    priority: int = 3
    requirement: Requirement = field(default_factory=Requirement)
    estimate: timedelta | None = None
    time_limit: timedelta | None = None

    @property
    def executed(self) -> tuple[str, ...]:
        """What really runs."""
        return self.argv or ("/bin/sh", "-c", self.command)

    @property
    def typed(self) -> str:
        """What a person would type for it."""
        return self.command or shlex.join(self.argv)

    @property
    def label(self) -> str:
        """The name, or the program and its first argument."""
        return (self.name or " ".join(self.typed.split()[:2]) or "job")[:120]


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why a request can never be met, with the numbers. `field` names what to change."""

    field: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedJob:
    """A waiting job, as the planner sees it. priority 5 is served first."""

    id: int
    owner: str
    priority: int
    submitted_at: datetime
    requirement: Requirement
    time_limit: timedelta | None = None
    estimate: timedelta | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Who holds memory on a GPU outside our jobs. memory_bytes None = unknown."""

    name: str
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """A GPU as the planner sees it: what is free after every foreign process and our own claims.

    free_bytes None = unknown: no shared job may be placed on it.
    `jobs`: ids of our jobs on it; `exclusive`: one of them has it alone; `undeclared`: one of
    them did not say how much memory it needs; `foreign`: who else holds memory there, most first.
    """

    gpu_uuid: str
    host: str
    index: int
    total_bytes: int | None
    free_bytes: int | None
    healthy: bool = True
    problem: str | None = None
    jobs: tuple[int, ...] = ()
    exclusive: bool = False
    undeclared: bool = False
    foreign: tuple[Holder, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocker:
    """One reason why a job waits. Its key holds every dimension and never a clock."""

    code: str
    text: str
    requested: str | None = None
    available: str | None = None
    holder: str | None = None
    until: datetime | None = None

    @property
    def key(self) -> tuple[str, str | None, str | None, str | None]:
        return (self.code, self.requested, self.available, self.holder)


@dataclass(frozen=True, slots=True, kw_only=True)
class Slots:
    """What a host can give now. `blocker`: why no job at all may start on its GPUs.

    `cpu_jobs`: how many jobs without a GPU have not ended.
    """

    host: str
    gpus: tuple[Slot, ...] = ()
    cpu_jobs: int = 0
    blocker: Blocker | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanPolicy:
    """The planner's thresholds.

    `margin_bytes` of each GPU stay free. A shared job that declares no memory needs
    `undeclared_bytes`. More than `unlisted_bytes` used by no listed process is a holder.
    """

    margin_bytes: int = 256 * 1024**2
    undeclared_bytes: int = 2 * 1024**3
    unlisted_bytes: int = 1024**3
    stale_after: timedelta = timedelta(seconds=10)
    cpu_jobs: int = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Which GPUs a job gets: the contract between planning and acting."""

    job_id: int
    host: str
    gpu_uuids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What one planning pass decided; every job of the queue is in exactly one of the two."""

    placements: tuple[Placement, ...] = ()
    blockers: dict[int, tuple[Blocker, ...]] = field(default_factory=dict)
