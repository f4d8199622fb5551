"""Policy: names of reasons to wait, for tables that count jobs by their main reason."""

from __future__ import annotations

import re
from collections.abc import Mapping

from scheduler.facts.blockers import Blocker
from scheduler.facts.blockers import BlockerCode as Code


def title(code: str) -> str:
    """The reason in a few words; the code itself if this version does not know it."""
    return _TITLES.get(code, code)


_TITLES: Mapping[str, str] = {
    Code.HELD: "Job on hold",
    Code.TOO_MANY_REQUEUES: "Requeued too often",
    Code.INFEASIBLE: "No matching GPU on this server",
    Code.ARRAY_LIMIT: "Limit of the array",
    Code.BEGIN_TIME: "Requested start time",
    Code.BACKOFF: "Pause before the next attempt",
    Code.DEPENDENCY: "Dependency on another job",
    Code.OUTSIDE_WINDOW: "Outside the user's time window",
    Code.USER_MAX_GPUS: "Quota: GPUs at a time",
    Code.USER_MAX_JOBS: "Quota: running jobs",
    Code.USER_MAX_MEMORY: "Quota: GPU memory",
    Code.USER_MAX_SHARE: "Quota: share of the GPUs",
    Code.BUDGET_DAY: "Quota: GPU-minutes of the day",
    Code.AGENT_MAX_JOBS: "Limit of an agent: running jobs",
    Code.AGENT_BUDGET: "Limit of an agent: GPU-minutes of the day",
    Code.SHARE_EXCEEDED: "Fair share reached",
    Code.SHARE_REDUCED: "Fair share reduced by the load of other users",
    Code.PRESSURE: "Load of the server",
    Code.UTIL_TARGET: "Utilisation target reached",
    Code.HOST_DRAINED: "Host drained",
    Code.NO_READING: "No reading of the GPUs yet",
    Code.STALE_READING: "Readings of the GPUs too old",
    Code.NO_GPU: "No usable GPU",
    Code.CPU_PLACES: "No place for jobs without a GPU",
    Code.DISK_FULL: "File system too full",
    Code.HOST_MEMORY: "Too little host memory",
    Code.HOST_CPUS: "Too few CPUs",
    Code.GPU_COUNT: "Too few free GPUs",
    Code.OTHER_GPUS: "Several reasons on several GPUs",
    Code.RESERVED_FOR: "GPU reserved for another job or time window",
    Code.BATCH_EXCLUSIVE: "GPU reserved for a batch",
    Code.GPU_UNHEALTHY: "GPU throttled, failing or lost",
    Code.GPU_UNSUITABLE: "GPUs do not match the request",
    Code.GPU_TAKEN: "GPU in use",
    Code.GPU_MEMORY: "Too little free GPU memory",
    Code.MEMORY_UNKNOWN: "Free GPU memory unknown",
    Code.RAMPING: "Another job is still taking its memory",
    Code.GPU_LOCKED: "GPU locked by another program",
    Code.GPU_PAUSED: "GPU paused by an operator",
    Code.GPU_RESERVED: "GPU reserved for a model",
    Code.GPU_QUARANTINED: "Memory of an ended job not free",
    Code.COMPUTE_PROHIBITED: "Compute mode of the GPU: prohibited",
    Code.COMPUTE_EXCLUSIVE: "Compute mode of the GPU: one process",
    Code.OWNER_PRESENT: "GPU used outside the queue",
    Code.GPU_UNCLEAR: "State of the GPU unknown",
    Code.JOB_UNCLEAR: "Planning of the job failed",
    Code.ENGINE_SUBMISSION: "Submission to Slurm",
    Code.ENGINE_REFUSED: "Refused by Slurm",
    Code.ENGINE_AWAY: "Slurm does not answer",
    Code.ENGINE_WAITS: "Waiting in Slurm",
}
# Of the GPUs that are not listed one by one.
SUMMARIES: Mapping[Code, str] = {
    Code.GPU_UNHEALTHY: "not healthy",
    Code.GPU_UNSUITABLE: "of unknown kind",
    Code.GPU_TAKEN: "taken",
    Code.GPU_MEMORY: "too full",
    Code.MEMORY_UNKNOWN: "of unknown memory",
    Code.GPU_LOCKED: "locked",
    Code.GPU_PAUSED: "paused",
    Code.GPU_RESERVED: "reserved for models",
    Code.GPU_QUARANTINED: "in quarantine",
    Code.GPU_UNCLEAR: "in an unknown state",
    Code.COMPUTE_PROHIBITED: "closed by its compute mode",
    Code.COMPUTE_EXCLUSIVE: "taken by one process",
    Code.OWNER_PRESENT: "in use by its owner",
    Code.OUTSIDE_WINDOW: "outside the time window",
    Code.RESERVED_FOR: "reserved",
    Code.BATCH_EXCLUSIVE: "taken by a batch",
    Code.RAMPING: "just given a job",
    Code.PRESSURE: "too busy",
    Code.UTIL_TARGET: "busy enough",
    Code.SHARE_REDUCED: "loaded by other users",
}


# Sentences about a user's limits and holds, as that user and others read them.


def owners(blocker: Blocker) -> str:
    """The user of the quota or time window, as a possessive."""
    return f"{blocker.user}'s" if blocker.user else "the owner's"


def addressed(text: str, viewer: str) -> str:
    """The sentences as they are shown to this user: "alice's quota" is "your quota" for alice."""
    if not viewer:
        return text
    name = re.escape(viewer)
    text = re.sub(rf"(^|[.!?] ){name}(?= or an operator must)", r"\1You", text)
    text = re.sub(rf"(^|[.!?] ){name} holds it(?= until it is released)", r"\1You hold it", text)
    possessive = rf"{name}'s(?= (?:share|quota|time window|jobs?)\b)"
    text = re.sub(rf"(^|[.!?] ){possessive}", r"\1Your", text)
    return re.sub(rf"(?<![\w@.+-]){possessive}", "your", text)
