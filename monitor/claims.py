"""Facts: who may use a GPU now."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


class ClaimKind(StrEnum):
    """script: a job · llm: a model that stays · lock: somebody outside who holds its lock file."""

    SCRIPT = "script"
    LLM = "llm"
    LOCK = "lock"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimFact:
    """Who may use a GPU: a job's hold on it, as the scheduler wrote it.

    `seen`: when a process of it was first seen there; `until`: when it ended. One that has ended
    is kept until the memory of its processes is back. `holder`: who holds a lock, in words.
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
