"""Facts: condition of a GPU, and the faults that it counts. Unknown is None, never zero."""

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


@dataclass(frozen=True, slots=True)
class Xid:
    """An error that the driver reported of a GPU, by NVIDIA's number."""

    gpu_uuid: str
    code: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthReading:
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
