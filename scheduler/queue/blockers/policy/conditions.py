"""Policy: the end of a wait, one sentence for each code of a blocker.

These sentences state who or what ends the wait. They give no advice: changes that help are planned
forward (`scheduler.queue.planner.forecast.advice`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from scheduler.facts.blockers import Blocker, Tier
from scheduler.facts.blockers import BlockerCode as Code
from scheduler.queue.blockers.policy.addressing import owners


def condition(blocker: Blocker) -> str:
    """One sentence that says what ends this reason to wait."""
    if blocker.never:
        return "It can't start as it is: cancel it, or change the request."
    words = _CONDITIONS[blocker.code]
    return words if isinstance(words, str) else words(blocker)


def _outside_window(blocker: Blocker) -> str:
    if blocker.detail("case") == "over":
        return "It starts in the next time window of its owner."
    if blocker.detail("case") == "later":
        return "It starts in that time window."
    return "It starts in a time window that is long enough."


def _memory_unknown(blocker: Blocker) -> str:
    if blocker.detail("unsupported"):
        return "An administrator can state the memory in `gpu_memory_gib`."
    if blocker.detail("call"):
        return "The driver is asked again each second."
    return _OPERATOR


def _memory(blocker: Blocker) -> str:
    """A process outside the queue ends at a time that is not known."""
    if blocker.holder is not None and not blocker.jobs:
        return "It starts when that process gives memory back."
    return "It starts when enough memory is free."


def _taken(blocker: Blocker) -> str:
    if blocker.detail("case") == "foreign":
        return "It starts when that process has ended."
    several = len(blocker.jobs) > 1
    return f"It starts when {'those jobs end' if several else 'that job ends'}."


def _budget(blocker: Blocker) -> str:
    return f"It starts after the day ends, {blocker.detail('resets')}."


_BY_ENGINE = {
    Tier.PERSON: "Its owner or an operator of the engine must change something.",
    Tier.NOT_YET: "It starts by itself when that is over.",
    Tier.MY_LIMITS: "The engine's limits of the owner allow no more now.",
    Tier.MACHINE: "An operator of the engine must look at its nodes.",
    Tier.CONTENTION: "The engine starts it when it is its turn.",
}
_WHEN_FREE = "It starts when a GPU that matches becomes free."
_BY_ITSELF = "It starts by itself when that is over."
_WHEN_CALM = "It starts when the load falls."
_OPERATOR = "An operator must look at this GPU."
_ADMINISTRATOR = "An administrator must change the compute mode of this GPU."

_CONDITIONS: Mapping[Code, str | Callable[[Blocker], str]] = {
    Code.HELD: lambda b: f"{b.holder or 'An operator'} or an operator must release it.",
    Code.TOO_MANY_REQUEUES: "Its owner or an operator must release it.",
    Code.INFEASIBLE: "It can't start as it is: cancel it, or change the request.",
    Code.ARRAY_LIMIT: "It starts when another job of the array ends.",
    Code.BEGIN_TIME: "It starts by itself after that time.",
    Code.BACKOFF: "It is tried again by itself.",
    Code.DEPENDENCY: _BY_ITSELF,
    Code.OUTSIDE_WINDOW: _outside_window,
    Code.USER_MAX_GPUS: lambda b: f"It starts when enough of {owners(b)} jobs have ended.",
    Code.USER_MAX_JOBS: lambda b: f"It starts when one of {owners(b)} jobs ends.",
    Code.USER_MAX_MEMORY: lambda b: f"It starts when enough of {owners(b)} jobs have ended.",
    Code.BUDGET_DAY: _budget,
    Code.AGENT_MAX_JOBS: "It starts when another job of this agent ends.",
    Code.AGENT_BUDGET: "It starts tomorrow, or when its owner raises the limit on /account/.",
    Code.USER_MAX_SHARE: lambda b: f"It starts when enough of {owners(b)} jobs have ended.",
    Code.SHARE_EXCEEDED: lambda b: (
        f"It starts when one of {owners(b)} jobs ends, or when no user below the share waits."
    ),
    Code.SHARE_REDUCED: _WHEN_CALM,
    Code.PRESSURE: _WHEN_CALM,
    Code.UTIL_TARGET: "It starts when the utilisation falls.",
    Code.NO_READING: "It starts after the first reading of the GPUs.",
    Code.STALE_READING: "It starts after the next reading of the GPUs; see /status/.",
    Code.NO_GPU: "An operator must look at the GPUs of this machine.",
    Code.CPU_PLACES: "It starts when one of those jobs ends.",
    Code.HOST_MEMORY: "It starts when enough jobs have ended.",
    Code.HOST_CPUS: "It starts when enough jobs have ended.",
    Code.DISK_FULL: "Files there must be deleted, by their owners or a clean-up; see /disks/.",
    Code.GPU_COUNT: "It starts when enough GPUs are free.",
    Code.OTHER_GPUS: _WHEN_FREE,
    Code.RESERVED_FOR: "It starts when that reservation is over.",
    Code.BATCH_EXCLUSIVE: "It starts when the batch has ended; see /batches/.",
    Code.GPU_UNHEALTHY: _OPERATOR,
    Code.GPU_UNSUITABLE: _WHEN_FREE,
    Code.GPU_TAKEN: _taken,
    Code.GPU_MEMORY: _memory,
    Code.MEMORY_UNKNOWN: _memory_unknown,
    Code.RAMPING: _BY_ITSELF,
    Code.GPU_LOCKED: "It starts when the lock is released.",
    Code.GPU_PAUSED: "An operator must resume this GPU.",
    Code.HOST_DRAINED: "An operator must enable the host; see /hosts/.",
    Code.GPU_RESERVED: "An operator can change the role of the model.",
    Code.GPU_UNCLEAR: "It is tried again automatically.",
    Code.ENGINE_SUBMISSION: _BY_ITSELF,
    Code.ENGINE_REFUSED: "It is submitted again every minute.",
    Code.ENGINE_AWAY: "It continues by itself when the engine answers again.",
    Code.ENGINE_WAITS: lambda b: _BY_ENGINE[b.tier],
    Code.JOB_UNCLEAR: "It is tried again automatically.",
    Code.GPU_QUARANTINED: "An operator must end the process that holds the memory.",
    Code.COMPUTE_PROHIBITED: _ADMINISTRATOR,
    Code.COMPUTE_EXCLUSIVE: _ADMINISTRATOR,
    Code.OWNER_PRESENT: _BY_ITSELF,
}
