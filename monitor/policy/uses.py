"""One process's use of one GPU, in all and in the minute that goes on."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from monitor.use_facts import UseSource

# (GPU, pid)
On = tuple[str, int]


@dataclass(slots=True)
class Amounts:
    """Of a GPU: seconds of its processors, seconds held, of these seconds known; memory; energy."""

    sm_s: float = 0.0
    held_s: float = 0.0
    known_s: float = 0.0
    memory_byte_s: float = 0.0
    memory_known_s: float = 0.0
    peak_memory_bytes: int | None = None
    joules: float | None = None

    def add(self, more: Amounts, part: float = 1.0) -> None:
        self.sm_s += more.sm_s * part
        self.held_s += more.held_s * part
        self.known_s += more.known_s * part
        self.memory_byte_s += more.memory_byte_s * part
        self.memory_known_s += more.memory_known_s * part
        if more.peak_memory_bytes is not None:
            self.peak_memory_bytes = max(self.peak_memory_bytes or 0, more.peak_memory_bytes)
        if more.joules is not None:
            self.joules = (self.joules or 0.0) + more.joules * part


@dataclass(slots=True, kw_only=True)
class Use:
    """One process on one GPU. `start_ticks` < 0: its start is unknown, and this is when it was
    first seen (epoch seconds). `minute` is what it used since `minute_t`."""

    gpu_uuid: str
    pid: int
    start_ticks: int
    first_seen_at: datetime
    last_seen_at: datetime
    ended_at: datetime | None = None
    created_at: datetime | None = None
    user: str | None = None
    uid: int | None = None
    program: str | None = None
    container: str | None = None
    job_ref: str | None = None
    job_owner: str | None = None
    source: UseSource = UseSource.UNKNOWN
    total: Amounts = field(default_factory=Amounts)
    minute_t: int = 0
    minute: Amounts = field(default_factory=Amounts)
    owed_s: float = 0.0
    # Whether its row has been written, or looked for.
    is_stored: bool = False

    @property
    def on(self) -> On:
        return (self.gpu_uuid, self.pid)


@dataclass(frozen=True, slots=True)
class Minute:
    """What a process used in the minute that began at `t`."""

    use: Use
    t: int
    amounts: Amounts
