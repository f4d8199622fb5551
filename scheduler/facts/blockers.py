"""Facts: why a job waits, by tier: the first reason in the lowest tier is the headline.

A blocker holds a code and typed facts. Its sentences are in `scheduler.queue.blockers.wording`; no
code reads facts back from a sentence.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import IntEnum, StrEnum
from typing import Any


class Tier(IntEnum):
    """The party that can lift it; the lowest tier is shown first."""

    PERSON = 1
    NOT_YET = 2
    MY_LIMITS = 3
    MACHINE = 4
    CONTENTION = 5


TIER_WORDS = {
    Tier.PERSON: "needs a person",
    Tier.NOT_YET: "not yet",
    Tier.MY_LIMITS: "user limits",
    Tier.MACHINE: "state of the machine",
    Tier.CONTENTION: "others are there",
}


class BlockerCode(StrEnum):
    """The stable names of all reasons to wait, as REST gives them out."""

    HELD = "Held"
    TOO_MANY_REQUEUES = "TooManyRequeues"
    INFEASIBLE = "Infeasible"
    ARRAY_LIMIT = "ArrayLimit"
    BEGIN_TIME = "BeginTime"
    BACKOFF = "Backoff"
    DEPENDENCY = "Dependency"
    OUTSIDE_WINDOW = "OutsideWindow"
    USER_MAX_GPUS = "UserMaxGpus"
    USER_MAX_JOBS = "UserMaxJobs"
    USER_MAX_MEMORY = "UserMaxMemory"
    USER_MAX_SHARE = "UserMaxShare"
    BUDGET_DAY = "BudgetDay"
    AGENT_MAX_JOBS = "AgentMaxJobs"
    AGENT_BUDGET = "AgentBudget"
    SHARE_EXCEEDED = "ShareExceeded"
    SHARE_REDUCED = "ShareReduced"
    PRESSURE = "Pressure"
    UTIL_TARGET = "UtilTarget"
    HOST_DRAINED = "HostDrained"
    NO_READING = "NoReading"
    STALE_READING = "StaleReading"
    NO_GPU = "NoGpu"
    CPU_PLACES = "CpuPlaces"
    DISK_FULL = "DiskFull"
    HOST_MEMORY = "HostMemory"
    HOST_CPUS = "HostCpus"
    GPU_COUNT = "GpuCount"
    OTHER_GPUS = "OtherGpus"
    RESERVED_FOR = "ReservedFor"
    BATCH_EXCLUSIVE = "BatchExclusive"
    GPU_UNHEALTHY = "GpuUnhealthy"
    GPU_UNSUITABLE = "GpuUnsuitable"
    GPU_TAKEN = "GpuTaken"
    GPU_MEMORY = "GpuMemory"
    MEMORY_UNKNOWN = "MemoryUnknown"
    RAMPING = "Ramping"
    GPU_LOCKED = "GpuLocked"
    GPU_PAUSED = "GpuPaused"
    GPU_RESERVED = "GpuReserved"
    GPU_QUARANTINED = "GpuQuarantined"
    COMPUTE_PROHIBITED = "ComputeProhibited"
    COMPUTE_EXCLUSIVE = "ComputeExclusive"
    OWNER_PRESENT = "OwnerPresent"
    GPU_UNCLEAR = "GpuUnclear"
    JOB_UNCLEAR = "JobUnclear"
    ENGINE_SUBMISSION = "EngineSubmission"
    ENGINE_REFUSED = "EngineRefused"
    ENGINE_AWAY = "EngineAway"
    ENGINE_WAITS = "EngineWaits"

    # An enum's own hash is slow.
    __hash__ = str.__hash__

    # Groups of codes, set once below: a forecast asks for them ten thousands of times.
    # is_of_gpu: always about single GPUs; says nothing about the others.
    is_of_gpu: bool
    # The end of another job of the same user may lift it.
    is_own_limit: bool
    # Other users' load causes it although there is room.
    is_load: bool
    # `requested` already stands in the sentence.
    repeats_request: bool
    # The bound on the utilisation of the GPUs while jobs wait for this reason.
    bound: str


_C = BlockerCode
_OF_GPU = frozenset(
    {
        _C.BATCH_EXCLUSIVE,
        _C.GPU_LOCKED,
        _C.GPU_MEMORY,
        _C.GPU_PAUSED,
        _C.GPU_QUARANTINED,
        _C.GPU_RESERVED,
        _C.GPU_TAKEN,
        _C.GPU_UNCLEAR,
        _C.GPU_UNHEALTHY,
        _C.GPU_UNSUITABLE,
        _C.MEMORY_UNKNOWN,
        _C.OWNER_PRESENT,
        _C.RAMPING,
        _C.RESERVED_FOR,
    }
)
_OWN_LIMITS = frozenset(
    {
        _C.AGENT_MAX_JOBS,
        _C.USER_MAX_GPUS,
        _C.USER_MAX_JOBS,
        _C.USER_MAX_MEMORY,
        _C.USER_MAX_SHARE,
    }
)
LOAD_CODES = frozenset({_C.PRESSURE, _C.SHARE_REDUCED, _C.UTIL_TARGET})
# A job that waits for these could run on the GPUs of others.
GPUS_IN_USE = LOAD_CODES | {
    _C.GPU_COUNT,
    _C.GPU_MEMORY,
    _C.GPU_TAKEN,
    _C.MEMORY_UNKNOWN,
    _C.OTHER_GPUS,
    _C.OWNER_PRESENT,
    _C.RAMPING,
    _C.RESERVED_FOR,
}
REPEATS_REQUEST = frozenset(
    {
        _C.BEGIN_TIME,
        _C.BACKOFF,
        _C.DEPENDENCY,
        _C.DISK_FULL,
        _C.ENGINE_REFUSED,
        _C.ENGINE_WAITS,
        _C.HOST_CPUS,
        _C.HOST_MEMORY,
    }
)
_BOUND = {_C.GPU_MEMORY: "memory", _C.OWNER_PRESENT: "owner"}

for _code in BlockerCode:
    _code.is_of_gpu = _code in _OF_GPU
    _code.is_own_limit = _code in _OWN_LIMITS
    _code.is_load = _code in LOAD_CODES
    _code.repeats_request = _code in REPEATS_REQUEST
    _code.bound = _BOUND.get(_code, "other")
BOUND_CODES = tuple(_BOUND)

Value = str | int | float | bool | None
Details = tuple[tuple[str, Value], ...]
Key = tuple[Any, ...]


def details(**values: Value) -> Details:
    """Facts that only the wording needs."""
    return tuple(values.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocker:
    """One reason why a job waits.

    gpu: index of the GPU that it is about. jobs: the jobs that hold it, or that it waits for.
    array: the array that it waits for. user: whose quota or time window it is. holder: who or what
    else holds it. until: when it ends by itself, None = unknown. never: waiting cannot lift it.
    """

    code: BlockerCode
    tier: Tier = Tier.CONTENTION
    gpu: int | None = None
    jobs: tuple[int, ...] = ()
    array: int | None = None
    user: str | None = None
    holder: str | None = None
    requested: str | None = None
    available: str | None = None
    until: datetime | None = None
    never: bool = False
    details: Details = ()

    @property
    def job(self) -> int | None:
        """The one job that it is about."""
        return self.jobs[0] if len(self.jobs) == 1 else None

    @property
    def key(self) -> Key:
        """Identity of the reason: every dimension, never a clock."""
        return (*self.dimensions, self.available, self.gpu)

    @property
    def dimensions(self) -> Key:
        """The key without figures that change while the machine works."""
        return (self.code, self.requested, self.holder, self.jobs, self.array, self.user)

    def detail(self, name: str) -> Any:
        """A fact of the wording; None where it is missing."""
        return next((value for key, value in self.details if key == name), None)


def to_row(blocker: Blocker) -> dict[str, Any]:
    """All facts of a blocker as JSON."""
    return {
        "code": blocker.code.value,
        "tier": int(blocker.tier),
        "gpu": blocker.gpu,
        "jobs": list(blocker.jobs),
        "array": blocker.array,
        "user": blocker.user,
        "holder": blocker.holder,
        "requested": blocker.requested,
        "available": blocker.available,
        "until": blocker.until.isoformat() if blocker.until else None,
        "never": blocker.never,
        "details": dict(blocker.details),
    }


def from_row(row: Mapping[str, Any]) -> Blocker:
    """The blocker that `to_row` wrote. Raises KeyError or ValueError for any other row."""
    return Blocker(
        code=BlockerCode(row["code"]),
        tier=Tier(row["tier"]),
        gpu=row["gpu"],
        jobs=tuple(row["jobs"]),
        array=row["array"],
        user=row["user"],
        holder=row["holder"],
        requested=row["requested"],
        available=row["available"],
        until=datetime.fromisoformat(row["until"]) if row["until"] else None,
        never=row["never"],
        details=tuple(row["details"].items()),
    )
