"""Facts: why a job waits, by tier: the first reason in the lowest tier is the headline.

A blocker holds a code and typed facts. Its sentences are in `scheduler.queue.wording`; no
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
    """The stable names of all reasons to wait, as REST gives them out, with their titles."""

    _value_: str
    # A few words, for tables that count jobs by their main reason.
    label: str
    # Of the GPUs that are not listed one by one; "": they always are.
    summary: str

    def __new__(cls, value: str, label: str = "", summary: str = "") -> BlockerCode:
        if not label:
            raise TypeError(f"The reason to wait {value} has no title.")
        code = str.__new__(cls, value)
        code._value_, code.label, code.summary = value, label, summary
        return code

    HELD = "Held", "Job on hold"
    TOO_MANY_REQUEUES = "TooManyRequeues", "Requeued too often"
    INFEASIBLE = "Infeasible", "No matching GPU on this server"
    ARRAY_LIMIT = "ArrayLimit", "Limit of the array"
    BEGIN_TIME = "BeginTime", "Requested start time"
    BACKOFF = "Backoff", "Pause before the next attempt"
    DEPENDENCY = "Dependency", "Dependency on another job"
    OUTSIDE_WINDOW = "OutsideWindow", "Outside the user's time window", "outside the time window"
    USER_MAX_GPUS = "UserMaxGpus", "Quota: GPUs at a time"
    USER_MAX_JOBS = "UserMaxJobs", "Quota: running jobs"
    USER_MAX_MEMORY = "UserMaxMemory", "Quota: GPU memory"
    USER_MAX_SHARE = "UserMaxShare", "Quota: share of the GPUs"
    BUDGET_DAY = "BudgetDay", "Quota: GPU-minutes of the day"
    AGENT_MAX_JOBS = "AgentMaxJobs", "Limit of an agent: running jobs"
    AGENT_BUDGET = "AgentBudget", "Limit of an agent: GPU-minutes of the day"
    SHARE_EXCEEDED = "ShareExceeded", "Fair share reached"
    SHARE_REDUCED = (
        "ShareReduced",
        "Fair share reduced by the load of other users",
        "loaded by other users",
    )
    PRESSURE = "Pressure", "Load of the server", "too busy"
    UTIL_TARGET = "UtilTarget", "Utilisation target reached", "busy enough"
    HOST_DRAINED = "HostDrained", "Host drained"
    NO_READING = "NoReading", "No reading of the GPUs yet"
    STALE_READING = "StaleReading", "Readings of the GPUs too old"
    NO_GPU = "NoGpu", "No usable GPU"
    CPU_PLACES = "CpuPlaces", "No place for jobs without a GPU"
    DISK_FULL = "DiskFull", "File system too full"
    HOST_MEMORY = "HostMemory", "Too little host memory"
    HOST_CPUS = "HostCpus", "Too few CPUs"
    GPU_COUNT = "GpuCount", "Too few free GPUs"
    OTHER_GPUS = "OtherGpus", "Several reasons on several GPUs"
    RESERVED_FOR = "ReservedFor", "GPU reserved for another job or time window", "reserved"
    BATCH_EXCLUSIVE = "BatchExclusive", "GPU reserved for a batch", "taken by a batch"
    GPU_UNHEALTHY = "GpuUnhealthy", "GPU throttled, failing or lost", "not healthy"
    GPU_UNSUITABLE = "GpuUnsuitable", "GPUs do not match the request", "of unknown kind"
    GPU_TAKEN = "GpuTaken", "GPU in use", "taken"
    GPU_MEMORY = "GpuMemory", "Too little free GPU memory", "too full"
    MEMORY_UNKNOWN = "MemoryUnknown", "Free GPU memory unknown", "of unknown memory"
    RAMPING = "Ramping", "Another job is still taking its memory", "just given a job"
    GPU_LOCKED = "GpuLocked", "GPU locked by another program", "locked"
    GPU_PAUSED = "GpuPaused", "GPU paused by an operator", "paused"
    GPU_RESERVED = "GpuReserved", "GPU reserved for a model", "reserved for models"
    GPU_QUARANTINED = "GpuQuarantined", "Memory of an ended job not free", "in quarantine"
    COMPUTE_PROHIBITED = (
        "ComputeProhibited",
        "Compute mode of the GPU: prohibited",
        "closed by its compute mode",
    )
    COMPUTE_EXCLUSIVE = (
        "ComputeExclusive",
        "Compute mode of the GPU: one process",
        "taken by one process",
    )
    OWNER_PRESENT = "OwnerPresent", "GPU used outside the queue", "in use by its owner"
    GPU_UNCLEAR = "GpuUnclear", "State of the GPU unknown", "in an unknown state"
    JOB_UNCLEAR = "JobUnclear", "Planning of the job failed"
    ENGINE_SUBMISSION = "EngineSubmission", "Submission to Slurm"
    ENGINE_REFUSED = "EngineRefused", "Refused by Slurm"
    ENGINE_AWAY = "EngineAway", "Slurm does not answer"
    ENGINE_WAITS = "EngineWaits", "Waiting in Slurm"

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


def title(code: str) -> str:
    """The reason in a few words; the code itself if this version does not know it."""
    try:
        return BlockerCode(code).label
    except ValueError:
        return code


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
