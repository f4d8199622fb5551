"""Facts: the protocol of an engine that runs jobs for gpucoord: its own runner, or Slurm.

An engine takes a ticket and returns its own name of the task, the ref. It reports states; what
follows from them is decided above it. A ref that is missing in a look is unknown, never ended.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Protocol

from msgspec import Struct, field


class EngineName(StrEnum):
    """Values of the setting `engine`. NONE: this host is only monitored and runs no jobs."""

    LOCAL = "local"
    SLURM = "slurm"
    NONE = "none"


class TaskState(StrEnum):
    """UNKNOWN: the engine gave no answer, or its list does not contain the task."""

    UNKNOWN = "unknown"
    WAITING = "waiting"
    RUNNING = "running"
    ENDED = "ended"


class Capabilities(Struct, frozen=True, kw_only=True):
    """Decisions that an engine takes itself; gpucoord takes the others.

    predicts_start: it reports expected starts. can_hold: hold() and release() work.
    """

    order: bool = False
    fair_share: bool = False
    quotas: bool = False
    preemption: bool = False
    windows: bool = False
    predicts_start: bool = False
    can_hold: bool = False


class Ticket(Struct, frozen=True, kw_only=True):
    """One try at a job. The nonce makes submissions idempotent: one nonce runs at most once.

    folder: of the attempt, with its spec.json. uid: of the account that submits it; None = the
    service's own. memory_bytes: of the host. gpu_type: as the engine names it. niceness: 0 or
    above. options: further options that an operator set. variables: those that a user set for the
    engine's command, as SBATCH_QOS.
    """

    job_id: int
    nonce: str
    folder: str
    name: str = ""
    uid: int | None = None
    gid: int | None = None
    groups: tuple[int, ...] = ()
    home: str = "/"
    gpus: int = 0
    gpu_type: str = ""
    niceness: int = 0
    cpus: float | None = None
    memory_bytes: int | None = None
    time_limit_s: float | None = None
    grace_s: float = 10.0
    options: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)


class SubmitResult(StrEnum):
    """UNCERTAIN: no answer came, so the engine may have the task: look for its nonce."""

    ACCEPTED = "accepted"
    REFUSED = "refused"
    UNCERTAIN = "uncertain"


class SubmitAnswer(Struct, frozen=True):
    """`text`: of the engine, in its own words."""

    result: SubmitResult
    ref: str = ""
    text: str = ""


class TaskReport(Struct, frozen=True, kw_only=True):
    """The engine's report of a task.

    word: the state in the engine's words. reason: why it waits or ended, in its words. node: the
    first node, where the runner is. expected_start: the engine's own estimate; None = it has none.
    nonce: "" for a task that gpucoord did not submit.
    """

    ref: str
    state: TaskState
    word: str = ""
    reason: str = ""
    nonce: str = ""
    uid: int | None = None
    node: str = ""
    nodes: str = ""
    expected_start: datetime | None = None


class Allocation(Struct, frozen=True, kw_only=True):
    """Resources and end of one task. gpus: their number, None = unknown.

    gpu_indices: indices on each node. exit_code and signal: None = unknown.
    """

    gpus: int | None = None
    gpu_indices: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    exit_code: int | None = None
    signal: int | None = None
    word: str = ""
    reason: str = ""


class NodeReport(Struct, frozen=True, kw_only=True):
    """A node of the engine. gpus: None = unknown. reason: why it is not in service."""

    name: str
    word: str = ""
    gpus: int | None = None
    gpus_allocated: int | None = None
    reason: str = ""


class TaskList(Struct, frozen=True):
    """One answer about all tasks. problem: why there was no answer; then `tasks` says nothing.

    unread: lines that could not be read.
    """

    tasks: Sequence[TaskReport] = ()
    problem: str = ""
    unread: int = 0

    @property
    def is_answer(self) -> bool:
        return not self.problem


class EngineAway(Exception):
    """The engine does not answer. The message is the engine's, or says what was tried."""


class Engine(Protocol):
    """Calls may take seconds; each is bounded by a timeout. No call raises for one bad item."""

    @property
    def name(self) -> EngineName: ...

    def capabilities(self) -> Capabilities: ...

    def submit(self, ticket: Ticket) -> SubmitAnswer:
        """Submit; calling it again with the same nonce never runs the job twice."""

    def look(self, refs: Sequence[str]) -> TaskList:
        """The states of these tasks, and of all others that the same answer contains."""

    def stop(self, ref: str, uid: int | None = None) -> str:
        """End it; returns "" or why that failed. Repeating it is harmless."""

    def ask_to_yield(self, ref: str) -> str:
        """Ask its runner to pass on a yield request."""

    def give_up(self, ticket: Ticket) -> bool:
        """Claim the attempt, so that no runner can; False: a runner was faster. Raises OSError."""

    def hold(self, ref: str) -> str: ...

    def release(self, ref: str) -> str: ...

    def nodes(self) -> Sequence[NodeReport]:
        """Raises EngineAway."""
