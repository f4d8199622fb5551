"""Facts: what a person may use, and what they use."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import date, datetime, time


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """The limits that hold for a person, joined from their own, their groups' and the default.

    None = no limit. share_pct: entitled share of the machine's GPUs. gpu_minutes: per day.
    memory_bytes: GPU memory at a time. reserved_pct: the part of the share that only
    user-initiated jobs may take.
    """

    share_pct: float | None = None
    gpu_minutes: float | None = None
    gpus: int | None = None
    jobs: int | None = None
    memory_bytes: int | None = None
    queued: int | None = None
    priority: int | None = None
    reserved_pct: float = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """GPU-minutes of a day: a ledger that never decays. `zone`: of the instant it is reset at.

    committed: what the running jobs may still take until their limits.
    """

    limit: float
    spent: float
    committed: float
    resets_at: datetime
    zone: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """An agreed weekly time: `days` 0 = Monday; from `start` to `end` in `zone`.

    An end that is not after the start is on the next day. gpu_uuids () = all GPUs.
    kept: then the GPUs are kept for the holder (share_pct of each); else the holder may use them
    only then. `members`: the people whom the holder, a person or a group, is. Days before first_day
    or after last_day don't count.
    """

    id: int
    holder: str
    members: frozenset[str]
    days: tuple[int, ...]
    start: time
    end: time
    zone: str
    gpu_uuids: tuple[str, ...] = ()
    share_pct: float = 100.0
    kept: bool = True
    first_day: date | None = None
    last_day: date | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """The GPUs that shares are shares of. gpu_bytes: the mean memory of one; None = unknown."""

    gpu_uuids: tuple[str, ...] = ()
    gpu_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Where a person stands at an instant.

    weight: part of all that is shared out, 0..1. usage: decayed mean of the capacity that all their
    processes took, 0..1 (None = never seen). target: the part they should have now, 0..1.
    gpus, jobs, memory_bytes: what their jobs hold now, starting ones too. charge: in GPUs, what
    these keep from others (whole ones, but the declared part of a shared one) and what their other
    processes use.
    """

    owner: str
    quota: Quota = field(default_factory=Quota)
    weight: float = 0.0
    usage: float | None = None
    target: float = 0.0
    gpus: int = 0
    jobs: int = 0
    memory_bytes: int = 0
    charge: float = 0.0
    capacity: Capacity = field(default_factory=Capacity)
    budget: Budget | None = None
    windows: tuple[Window, ...] = ()
