"""Content of the timeline: bars of jobs and of other use on each GPU, and bands of time windows.

Times are epoch seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from monitor.facts.accounts import submitter


class BarKind(StrEnum):
    """job: of the queue · use: outside the queue · expected: a waiting job's predicted run."""

    JOB = "job"
    USE = "use"
    EXPECTED = "expected"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One job, or one user outside the queue, on one GPU.

    end None: it goes on. expected_end None: unknown. state: the word of the job's state.
    idle: stretches in which it held memory that nothing used. agent: the owner's agent that
    submitted the job, "" = none. count: above 1, it stands for so many short ones of one owner,
    which together took `taken` of its time.
    """

    gpu_uuid: str
    kind: BarKind
    owner: str | None
    label: str
    begin: int
    end: int | None
    job: int | None = None
    state: str = ""
    expected_end: int | None = None
    idle: tuple[tuple[int, int], ...] = ()
    agent: str = ""
    count: int = 1
    taken: tuple[tuple[int, int], ...] = ()

    @property
    def stretches(self) -> tuple[tuple[int, int], ...]:
        """The time that it stands for; of one that goes on without an expected end, the begin."""
        last = self.end or self.expected_end or self.begin
        return self.taken if self.count > 1 else ((self.begin, last),)

    @property
    def submitter(self) -> str:
        return submitter(self.owner, self.agent) if self.owner else "owner unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """One occurrence of a time window on a GPU. kept: the GPU is reserved for the holder."""

    gpu_uuid: str
    holder: str
    kept: bool
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class TimelineGpu:
    uuid: str
    index: int
    host: str


@dataclass(frozen=True, slots=True)
class UsePiece:
    """A process outside the queue, or of a job, on a GPU in one step of the history.

    used_pct None: not measured.
    """

    gpu_uuid: str
    owner: str | None
    job: int | None
    begin: int
    end: int
    used_pct: float | None
    memory_bytes: float | None
