"""Policy: what lifts a blocker, one sentence for each code."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from scheduler.facts.blockers import Blocker, Tier
from scheduler.facts.blockers import BlockerCode as Code


def next_step(blocker: Blocker) -> str:
    """One sentence that says what lifts the blocker."""
    if blocker.never:
        return _NEVER.get(
            blocker.code, "It needs a higher limit from an operator, or a smaller request."
        )
    step = _STEPS[blocker.code]
    return step if isinstance(step, str) else step(blocker)


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


def _outside_window_step(blocker: Blocker) -> str:
    return {
        "over": "Request a new time window.",
        "later": "It starts in that time window.",
        "too long": "It starts in the next time window; a shorter time limit may start it sooner.",
        "unknown": "Give it a time limit, or make it preemptible.",
    }[blocker.detail("case")]


def _reserved_for_step(blocker: Blocker) -> str:
    if blocker.detail("case") == "unknown":
        return "Give it a time limit; it may then start before that job."
    if blocker.detail("case") == "window":
        return "A shorter time limit may start it sooner."
    return "It starts after that job, or on another GPU."


def _gpu_taken_step(blocker: Blocker) -> str:
    if blocker.detail("case") == "must declare":
        return "Declare the GPU memory that it needs, so that it can share a GPU."
    return "It starts when a GPU becomes free."


_ENGINE_STEPS = {
    Tier.PERSON: "Its owner or an operator of the engine must change something.",
    Tier.NOT_YET: "It starts by itself when that is over.",
    Tier.MY_LIMITS: "The engine's limits of the owner allow no more now.",
    Tier.MACHINE: "An operator of the engine must look at its nodes.",
    Tier.CONTENTION: "The engine starts it when it is its turn.",
}
_WHEN_FREE = "It starts when a GPU becomes free."
_BY_ITSELF = "It starts by itself when that is over."
_OPERATOR = "An operator must look at this GPU."


def _memory_unknown_step(blocker: Blocker) -> str:
    if blocker.detail("unsupported"):
        return (
            "Ask for the whole GPU without a GPU memory, or let an administrator state its memory"
            " in `gpu_memory_gib`."
        )
    if blocker.detail("call"):
        return "The driver is asked again each second."
    return _OPERATOR


_STEPS: Mapping[Code, str | Callable[[Blocker], str]] = {
    Code.HELD: lambda b: f"{b.holder or 'An operator'} or an operator must release it.",
    Code.TOO_MANY_REQUEUES: "Its owner or an operator must release it.",
    Code.INFEASIBLE: "Cancel it, and ask for GPUs that are here.",
    Code.ARRAY_LIMIT: "It starts when another job of the array ends.",
    Code.BEGIN_TIME: "It starts by itself after that time.",
    Code.BACKOFF: "It is tried again by itself.",
    Code.DEPENDENCY: _BY_ITSELF,
    Code.OUTSIDE_WINDOW: _outside_window_step,
    Code.USER_MAX_GPUS: lambda b: f"It starts when enough of {owners(b)} jobs have ended.",
    Code.USER_MAX_JOBS: lambda b: f"It starts when one of {owners(b)} jobs ends.",
    Code.USER_MAX_MEMORY: lambda b: f"It starts when enough of {owners(b)} jobs have ended.",
    Code.BUDGET_DAY: lambda b: (
        "Give it a time limit."
        if b.detail("needed") is None and b.detail("left")
        else f"It starts after the day ends, {b.detail('resets')}."
    ),
    Code.AGENT_MAX_JOBS: "It starts when another job of this agent ends.",
    Code.AGENT_BUDGET: "It starts tomorrow, or when its owner raises the limit on /account/.",
    Code.USER_MAX_SHARE: lambda b: f"It starts when enough of {owners(b)} jobs have ended.",
    Code.SHARE_EXCEEDED: lambda b: (
        f"It starts when one of {owners(b)} jobs ends, or when no user below the share waits."
    ),
    Code.SHARE_REDUCED: "It starts on an empty GPU, or when the load of other users falls.",
    Code.PRESSURE: "It starts when the load falls.",
    Code.UTIL_TARGET: "It starts on an empty GPU, or when the utilisation falls.",
    Code.NO_READING: "It starts after the first reading of the GPUs.",
    Code.STALE_READING: "It starts after the next reading of the GPUs; see /status/.",
    Code.NO_GPU: "An operator must look at the GPUs of this machine.",
    Code.CPU_PLACES: "It starts when one of those jobs ends.",
    Code.HOST_MEMORY: "It starts when enough jobs have ended; less memory may start it sooner.",
    Code.HOST_CPUS: "It starts when enough jobs have ended; fewer CPUs may start it sooner.",
    Code.DISK_FULL: "Delete files there, or ask an operator to clean up; see /disks/.",
    Code.GPU_COUNT: "It starts when enough GPUs are free.",
    Code.OTHER_GPUS: _WHEN_FREE,
    Code.RESERVED_FOR: _reserved_for_step,
    Code.BATCH_EXCLUSIVE: "It starts when the batch has ended; see /batches/.",
    Code.GPU_UNHEALTHY: _OPERATOR,
    Code.GPU_UNSUITABLE: "It starts when a matching GPU is free.",
    Code.GPU_TAKEN: _gpu_taken_step,
    Code.GPU_MEMORY: "It starts when enough memory is free; less memory may start it sooner.",
    Code.MEMORY_UNKNOWN: _memory_unknown_step,
    Code.RAMPING: _BY_ITSELF,
    Code.GPU_LOCKED: "It starts when the lock is released.",
    Code.GPU_PAUSED: "An operator must resume this GPU.",
    Code.HOST_DRAINED: "An operator must enable the host; see /hosts/.",
    Code.GPU_RESERVED: "Choose another GPU; an operator can change the role of the model.",
    Code.GPU_UNCLEAR: "It is tried again automatically.",
    Code.ENGINE_SUBMISSION: _BY_ITSELF,
    Code.ENGINE_REFUSED: "Change or cancel it; it is submitted again every minute.",
    Code.ENGINE_AWAY: "It continues by itself when the engine answers again.",
    Code.ENGINE_WAITS: lambda b: _ENGINE_STEPS[b.tier],
    Code.JOB_UNCLEAR: "It is tried again automatically.",
    Code.GPU_QUARANTINED: "An operator must end the process that holds the memory.",
    Code.COMPUTE_PROHIBITED: "An administrator must change the compute mode of this GPU.",
    Code.COMPUTE_EXCLUSIVE: "An administrator must change the compute mode of this GPU.",
    Code.OWNER_PRESENT: _BY_ITSELF,
}
_NEVER: Mapping[Code, str] = {Code.INFEASIBLE: "Cancel it, and ask for GPUs that are here."}


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
