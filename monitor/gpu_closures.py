"""Facts: a GPU that is well but takes no new work, and why."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


class ClosureKind(StrEnum):
    """paused: by an operator, what runs there may end · quarantined: memory was not given back."""

    PAUSED = "paused"
    QUARANTINED = "quarantined"


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
        held = "memory" if self.memory_bytes is None else f"{self.memory_bytes / 1024**3:.1f} GiB"
        whose = f"of job {self.job_ref} (pid {self.pid})"
        return f"In quarantine: the job has ended, but {held} {whose} are not back."
