"""Facts: how well a GPU is, and what it counts of its own faults. Unknown is None, never zero."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


class Condition(StrEnum):
    """healthy: takes work · throttled: too hot or slowed down · failing: its answers or its

    memory can't be trusted · lost: not there. Only a healthy one gets new work.
    """

    HEALTHY = "healthy"
    THROTTLED = "throttled"
    FAILING = "failing"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class Ailment:
    """One thing that is wrong with a GPU. `code` is a stable name; `text` holds no figure that

    moves. `condition` is what it makes of the GPU; HEALTHY = worth knowing, work goes on.
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


@dataclass(frozen=True, slots=True)
class Xid:
    """An error that the driver reported of a GPU, by NVIDIA's number."""

    gpu_uuid: str
    code: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthReading:
    """What one GPU counts, since its driver was loaded, of faults and slow-downs.

    A probe leaves everything from `hot` on open. That is the judge's memory: it stands in the
    snapshot, so that the next process goes on where this one stopped.
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
    slow_since: datetime | None = None
    slow_at: datetime | None = None
    spinning_since: datetime | None = None
    over_power_since: datetime | None = None
    # (XID, when) of those that hold the GPU back
    xids: tuple[tuple[int, datetime], ...] = ()
    ailments: tuple[Ailment, ...] = ()

    def has(self, code: str) -> bool:
        return any(ailment.code == code for ailment in self.ailments)
