"""Facts: a job, where it is (state), how it ended (outcome), and which moves are legal."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from math import sqrt
from typing import Any

from monitor.facts import input_rules
from monitor.facts.input_rules import is_storable
from scheduler.facts.blockers import Blocker

# Notices to users about their jobs.


# Limits of a user's settings of notices.
LONGEST_ADDRESS = 2000
MOST_FAILURES, LONGEST_QUICK_S = 100, 86_400


class NoticeKind(StrEnum):
    """FINISHED: it has ended, however. FAILED: it ended without success. STARTS_SOON: by the

    predicted start. A cancelled job gives no notice to the user who cancelled it.
    """

    FINISHED = "finished"
    FAILED = "failed"
    PREEMPTED = "preempted"
    STARTS_SOON = "starts_soon"


NOTICE_WORDS: dict[NoticeKind, str] = {
    NoticeKind.FINISHED: "A job has ended",
    NoticeKind.FAILED: "A job has failed, timed out or was lost",
    NoticeKind.PREEMPTED: "A job was interrupted and waits again",
    NoticeKind.STARTS_SOON: "A job is expected to start soon",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobNotice:
    """Something that happened to a job. event: the number of its event; 0 = none."""

    kind: NoticeKind
    job_id: int
    name: str
    owner: str
    text: str
    event: int = 0

    @property
    def about(self) -> str:
        """The key under which it is sent once."""
        return f"job:{self.job_id}:{self.kind}:{self.event}"


def parse_kinds(text: str) -> tuple[NoticeKind, ...]:
    """Read "finished, preempted"; raises ValueError with a sentence."""
    words = [word for word in text.replace(",", " ").lower().replace("-", "_").split() if word]
    try:
        return tuple(dict.fromkeys(NoticeKind(word) for word in words))
    except ValueError:
        allowed = ", ".join(NoticeKind)
        raise ValueError(f"Write one or more of: {allowed}.") from None


LARGEST_RESULT = 64 * 1024
AGES = timedelta(days=36_500)


class JobState(StrEnum):
    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    FINISHED = "finished"


class Outcome(StrEnum):
    """succeeded: exit 0 · failed: any other exit or signal, or it could not start ·

    cancelled: by a person · timed_out: over its time limit · lost: the exit code is unknown ·
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

NORMAL_PRIORITY = 3
# Of a job whose submitter waits for its end, as `gpucoord submit` does: user-initiated.
BLOCKING_PRIORITY = 4
PRIORITIES = {5: "urgent", 4: "high", 3: "normal", 2: "low", 1: "background"}


class PriorityClass(StrEnum):
    """Meaning of a priority under scarcity: background jobs stop first.

    user_initiated: a user waits for it; a part of each quota is reserved for these jobs.
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
    """A state change that the table does not allow: an error in gpucoord, never of a user."""


def check_transition(old: JobState, new: JobState) -> None:
    """Raise IllegalTransition unless `old` may become `new`."""
    if new not in TRANSITIONS[old]:
        raise IllegalTransition(f"a {old} job can't become {new}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """Requested GPUs: their number, memory on each, exclusive or shared, and constraints.

    memory_bytes: None = not declared. gpus: 0 = a job without a GPU.
    capability: minimum compute capability, (8, 0) for "8.0". model: words of the GPU's name, or a
    pattern with * and ?. power: minimum rank (monitor.gpus.policy.capability). gpu_uuid: only this
    GPU. among: only these GPUs, also those of them that are reserved for models; () = any.
    share_pct: maximum of a shared GPU's time. host_memory_bytes, cpus: of the host; None = not
    declared. usual_memory_bytes, usual_cpus: of the host, as earlier runs took; None = unknown.
    batch: it may use the GPUs of this batch in exclusive mode.
    """

    gpus: int = 1
    memory_bytes: int | None = None
    exclusive: bool = False
    capability: tuple[int, int] | None = None
    model: str = ""
    power: float | None = None
    gpu_uuid: str = ""
    among: tuple[str, ...] = ()
    share_pct: int | None = None
    host_memory_bytes: int | None = None
    cpus: float | None = None
    batch: int | None = None
    usual_memory_bytes: int | None = None
    usual_cpus: float | None = None

    @property
    def shares(self) -> bool:
        """Whether other jobs may be placed on the same GPU."""
        return self.gpus > 0 and self.memory_bytes is not None and not self.exclusive


class DependencyKind(StrEnum):
    """Condition of a dependency: any end of the other job, or its success."""

    END = "end"
    SUCCESS = "success"


@dataclass(frozen=True, slots=True, kw_only=True)
class Dependency:
    """Wait for job `on`."""

    on: int
    after: DependencyKind = DependencyKind.SUCCESS


@dataclass(frozen=True, slots=True, kw_only=True)
class YieldOptions:
    """Preemption and retries of a job.

    preemptible: a job of a higher class, or a user of its GPU, may ask it to yield at any time.
    requeue: run it again after a yield that did not end with exit 85 (checkpoint saved).
    yield_signal: sent first, such as "SIGUSR1"; only if declared, because it ends an unprepared
    job. grace: from the request to SIGKILL; None = the setting. retries: after failures.
    """

    preemptible: bool = False
    requeue: bool = False
    yield_signal: str = ""
    grace: timedelta | None = None
    retries: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NewJob:
    """A submitted job. Either `command` (a shell line) or `argv` (without a shell).

    priority_chosen: False = a default, which is lowered to the owner's maximum.
    cpus, memory_bytes: limits of its processes on the host, if it has cgroups.
    array: indices of an array, () = a single job; at most array_limit of them run at a time. Each
    element has its index in GPUCOORD_ARRAY_INDEX.
    """

    command: str = ""
    argv: tuple[str, ...] = ()
    # The registered script that argv comes from, and its arguments.
    script: str = ""
    script_args: dict[str, Any] = field(default_factory=dict)
    task_type: str = ""
    name: str = ""
    cwd: str = ""
    env: dict[str, str] = field(default_factory=dict)
    priority: int = NORMAL_PRIORITY
    priority_chosen: bool = True
    requirement: Requirement = field(default_factory=Requirement)
    cpus: float | None = None
    memory_bytes: int | None = None
    # Its GPU memory comes from earlier runs of the command.
    memory_is_learned: bool = False
    estimate: timedelta | None = None
    time_limit: timedelta | None = None
    yield_options: YieldOptions = field(default_factory=YieldOptions)
    begin_at: datetime | None = None
    after: tuple[Dependency, ...] = ()
    array: tuple[int, ...] = ()
    array_limit: int | None = None
    notify: tuple[NoticeKind, ...] = ()
    # As the command line captures it; `env` takes precedence.
    environment: dict[str, str] = field(default_factory=dict)
    umask: int | None = None
    # Soft limits of its processes, by the names of scheduler.facts.people.
    limits: dict[str, int | str] = field(default_factory=dict)
    # Primary group of its processes; "" = the account's own.
    group: str = ""
    # After quick failures in a row, the owner's further jobs of the program are held.
    pause_on_quick_failure: bool = False
    # Parts of the submitting shell that it does not get, with the reason.
    left_out: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    # The number of the owner's agent that submits it.
    agent: int | None = None
    # It answers items of this batch.
    worker_batch: int | None = None
    # It runs in a terminal.
    interactive: bool = False
    # Standard input of the job; empty = none.
    stdin: bytes = b""
    # The only host that may run it; "" = any.
    host: str = ""

    @property
    def size(self) -> int:
        """How many jobs it makes."""
        return max(1, len(self.array))

    @property
    def input_size(self) -> int:
        """Of the standard input and the environment."""
        return len(self.stdin) + sum(len(n) + len(v) for n, v in self.environment.items())

    @property
    def executed(self) -> tuple[str, ...]:
        """The executed arguments."""
        return self.argv or ("/bin/sh", "-c", self.command)

    @property
    def typed(self) -> str:
        """The command as text."""
        return self.command or shlex.join(self.argv)

    @property
    def label(self) -> str:
        """The name, or the program and its first argument."""
        return (self.name or " ".join(self.typed.split()[:2]) or "job")[:120]


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why a request can never be satisfied, with the numbers. field: the field to change.

    index: of a batch, which job it concerns, from 0.
    """

    field: str
    text: str
    index: int | None = None


@dataclass(frozen=True, slots=True)
class RunTime:
    """How long a job is expected to run: half of such jobs end by p50, nine of ten by p90.

    is_guess: too few runs are known. Then jobs of a kind are long or short together.
    """

    p50: timedelta
    p90: timedelta
    is_guess: bool = False

    def of(self, jobs: int) -> RunTime:
        """The run time of so many such jobs in a row. The spread of a sum grows with the root.

        A sum of more than AGES counts as one job: a time that far away is no date any more.
        """
        p50, late = self.p50 * jobs, (self.p90 - self.p50) * sqrt(jobs)
        return RunTime(p50, p50 + late, self.is_guess) if p50 + late < AGES else self


@dataclass(frozen=True, slots=True)
class Ends:
    """When a running job is expected to end: in half of the cases, and in nine of ten."""

    p50: datetime
    p90: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedJob:
    """A waiting job, as input of the planner. Priority 5 comes first.

    waits: its own blockers: a hold, a begin time, a dependency, a retry's back-off, its array's
    limit. usual, typical: 90th percentile and median of the run times of its owner's jobs of this
    kind; None = no history. may_preempt_at: it was preempted, and preempts no job before this.
    expected: its run time, for predictions. idle_work: of a template; it preempts no job.
    host: the only host that may run it; "" = any.
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
    expected: RunTime | None = None
    preemptible: bool = False
    may_preempt_at: datetime | None = None
    idle_work: bool = False
    waits: tuple[Blocker, ...] = ()
    host: str = ""

    @property
    def lasts(self) -> timedelta | None:
        """The longest time for which it needs its GPUs; None = unknown."""
        return self.time_limit or self.usual or self.estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Which processes an attempt is, as its runner wrote it down."""

    account: str
    runner_pid: int
    runner_start_ticks: int
    pid: int
    start_ticks: int
    started_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptEnding:
    """How an attempt ended. None = not known."""

    outcome: Outcome
    ended_at: datetime
    exit_code: int | None = None
    signal: int | None = None
    problem: str = ""
    cpu_s: float | None = None
    peak_memory_bytes: int | None = None
    log_bytes: int | None = None


def read_result(text: bytes) -> dict[str, Any] | None:
    """{"output": …} or {"problem": …}; None: the file is missing or empty."""
    if not text.strip():
        return None
    if len(text) > LARGEST_RESULT:
        return {"problem": f"The result file is larger than {LARGEST_RESULT // 1024} KiB."}
    try:
        output = input_rules.parse_json(text, allows_nan=False)
        stored = json.dumps(output, ensure_ascii=False)
    except (ValueError, RecursionError):
        return {"problem": "The result file is no JSON."}
    if "\\u0000" in stored or not is_storable(stored):
        return {"problem": "The result file has characters that can't be stored."}
    return {"output": output}
