"""Facts: a job, where it is (state), how it ended (outcome), and which moves are legal."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum

from scheduler.blockers import Blocker


class JobState(StrEnum):
    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    FINISHED = "finished"


class Outcome(StrEnum):
    """succeeded: exit 0 · failed: any other exit or signal, or it could not start ·

    cancelled: by a person · timed_out: over its time limit · lost: nobody can tell how it ended ·
    preempted: it yielded its GPU and is not run again · skipped: it was to start after the success
    of a job that did not succeed.
    """

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TIMED_OUT = "timed_out"
    LOST = "lost"
    PREEMPTED = "preempted"
    SKIPPED = "skipped"


# The one table of legal moves; the database constraint and the admin read it too.
TRANSITIONS: dict[JobState, frozenset[JobState]] = {
    JobState.QUEUED: frozenset({JobState.STARTING, JobState.FINISHED}),
    JobState.STARTING: frozenset(
        {JobState.QUEUED, JobState.RUNNING, JobState.STOPPING, JobState.FINISHED}
    ),
    JobState.RUNNING: frozenset({JobState.QUEUED, JobState.STOPPING, JobState.FINISHED}),
    JobState.STOPPING: frozenset({JobState.QUEUED, JobState.FINISHED}),
    JobState.FINISHED: frozenset(),
}

PRIORITIES = {5: "urgent", 4: "high", 3: "normal", 2: "low", 1: "background"}


class PriorityClass(StrEnum):
    """What a priority means when things get scarce: background stops first.

    user_initiated: somebody sits and waits for it; a part of each quota is kept for these.
    """

    USER_INITIATED = "user-initiated"
    NORMAL = "normal"
    BACKGROUND = "background"


CLASSES: dict[int, PriorityClass] = {
    5: PriorityClass.USER_INITIATED,
    4: PriorityClass.USER_INITIATED,
    3: PriorityClass.NORMAL,
    2: PriorityClass.BACKGROUND,
    1: PriorityClass.BACKGROUND,
}


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
    capability: the least compute capability, (8, 0) for "8.0". model: words that must stand in the
    GPU's name, or a pattern with * and ?. power: the least rank (monitor.policy.capability).
    gpu_uuid: this GPU and no other. share_pct: the most of a shared GPU's time it may take.
    """

    gpus: int = 1
    memory_bytes: int | None = None
    exclusive: bool = False
    capability: tuple[int, int] | None = None
    model: str = ""
    power: float | None = None
    gpu_uuid: str = ""
    share_pct: int | None = None

    @property
    def shares(self) -> bool:
        """Whether others of ours may be put beside it."""
        return self.gpus > 0 and self.memory_bytes is not None and not self.exclusive


class After(StrEnum):
    """What a job waits for of another: its end, however it ends, or its success."""

    END = "end"
    SUCCESS = "success"


@dataclass(frozen=True, slots=True, kw_only=True)
class Dependency:
    """Wait for job `on`."""

    on: int
    after: After = After.SUCCESS


@dataclass(frozen=True, slots=True, kw_only=True)
class Manners:
    """How a job behaves when its GPU is wanted, or when it fails.

    preemptible: a more important job, or its GPU's owner, may ask it to yield at any time.
    requeue: run it again after it yielded without saying that it saved its work (exit 85).
    yield_signal: "SIGUSR1", say, is sent first; only what a job declares, as an unprepared one dies
    of it. grace: from being asked to SIGKILL; None = the setting. retries: after failures.
    """

    preemptible: bool = False
    requeue: bool = False
    yield_signal: str = ""
    grace: timedelta | None = None
    retries: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NewJob:
    """What a person submits. Either `command` (a shell line) or `argv` (runs as it is).

    cpus, memory_bytes: the most that its processes take of the host, where it has cgroups.
    array: the indices of an array of jobs, () for a single one; at most array_limit of them run at
    a time. Each element has its index in GPUCOORD_ARRAY_INDEX.
    """

    command: str = ""
    argv: tuple[str, ...] = ()
    name: str = ""
    cwd: str = ""
    env: dict[str, str] = field(default_factory=dict)
    priority: int = 3
    requirement: Requirement = field(default_factory=Requirement)
    cpus: float | None = None
    memory_bytes: int | None = None
    estimate: timedelta | None = None
    time_limit: timedelta | None = None
    manners: Manners = field(default_factory=Manners)
    begin_at: datetime | None = None
    after: tuple[Dependency, ...] = ()
    array: tuple[int, ...] = ()
    array_limit: int | None = None

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
    """A waiting job, as the planner sees it. priority 5 is served first.

    waits: what keeps this very job, whatever is free: a hold, a begin time, a dependency, a retry's
    pause, its array's limit. usual: how long its owner's jobs of this kind took at most, nine times
    of ten (p90), typical: every other time (p50); None = no history. may_preempt_at: it was
    preempted itself and preempts nobody before this.
    """

    id: int
    owner: str
    priority: int
    submitted_at: datetime
    requirement: Requirement
    time_limit: timedelta | None = None
    estimate: timedelta | None = None
    usual: timedelta | None = None
    typical: timedelta | None = None
    preemptible: bool = False
    may_preempt_at: datetime | None = None
    waits: tuple[Blocker, ...] = ()

    @property
    def lasts(self) -> timedelta | None:
        """How long its place must be counted as taken, at most; None = nobody can tell."""
        return self.time_limit or self.usual or self.estimate
