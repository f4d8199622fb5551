"""Policy: blockers as stored with a job and as given out: sentences, reasons by tier, times.

The sentences about the end of a wait state who or what ends it. They give no advice: changes that
help are planned forward (`scheduler.queue.planner.forecast.advice`).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby, pairwise
from typing import Any

from scheduler.facts.blockers import (
    LOAD_CODES,
    REPEATS_REQUEST,
    TIER_WORDS,
    Blocker,
    BlockerCode,
    Tier,
    to_row,
)
from scheduler.facts.blockers import BlockerCode as Code
from scheduler.queue.blockers.policy.titles import addressed, owners
from scheduler.queue.blockers.wording import headline, jobs, lower_first, text


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


# Reasons that count several GPUs together.
ABOUT_GPUS = {BlockerCode.OTHER_GPUS.value, BlockerCode.GPU_UNSUITABLE.value}
# Reasons that only say how many GPUs can or cannot take the job.
COUNTS = {BlockerCode.OTHER_GPUS.value, BlockerCode.GPU_COUNT.value}
# Of a job whose blocker changes more often, the oldest changes are dropped.
LONGEST_LOG = 4000


@dataclass(frozen=True, slots=True)
class Reason:
    """A blocker from a job's row. until None = unknown. never: the job cannot start."""

    code: str
    text: str
    headline: str
    next_step: str
    tier: Tier
    requested: str | None
    available: str | None
    holder: str | None
    until: datetime | None
    gpu: int | None = None
    job: int | None = None
    array: int | None = None
    never: bool = False

    @property
    def facts(self) -> list[tuple[str, str, int | None]]:
        """(label, value, linked job) of the request, and of the facts that the text lacks."""
        repeats = self.code in REPEATS_REQUEST
        gpu = None if self.gpu is None else f"GPU {self.gpu}"
        facts = (
            ("requested", None if repeats else self.requested, None),
            ("on", None if self.available else gpu, None),
            ("available", self.available, None),
            # An array is named by its first job.
            ("held by", self.holder, self.array if self.job is None else self.job),
        )
        return [
            (label, value, job)
            for label, value, job in facts
            if value and (job or label == "requested" or not self._states(value))
        ]

    def _states(self, value: str) -> bool:
        """Whether the sentence has this value as words of its own."""
        return re.search(rf"(?<![\w.]){re.escape(value)}(?![\w]|\.\d)", self.text) is not None


@dataclass(frozen=True, slots=True)
class Group:
    """The reasons of one tier."""

    words: str
    reasons: tuple[Reason, ...]


def explained(stored: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Reasons for a page: the headline, and all reasons by tier."""
    sorted_reasons = reasons(stored)
    return {"headline": first(sorted_reasons), "why": grouped(sorted_reasons)}


def addressed_to(stored: Iterable[Mapping[str, Any]], viewer: str) -> list[dict[str, Any]]:
    """The same blockers, with the sentences as `titles.addressed` has them."""
    sentences = ("text", "headline", "next_step")
    return [
        {**row, **{name: addressed(row[name], viewer) for name in sentences if row.get(name)}}
        for row in stored
    ]


def with_current_ends(stored: Iterable[Mapping[str, Any]], now: datetime) -> list[dict[str, Any]]:
    """The same blockers; expected ends that have passed become unknown.

    Blockers are stored only when they change, but their ends can move in the meantime.
    """
    return [
        {**row, "until": None} if (end := row.get("until")) and _moment(end) <= now else {**row}
        for row in stored
    ]


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text)


def reasons(stored: Iterable[Mapping[str, Any]]) -> list[Reason]:
    """The stored blockers, sorted by tier."""
    return sorted(map(_reason, stored), key=lambda reason: reason.tier)


def first(reasons: Sequence[Reason]) -> Reason | None:
    """The main reason; None = there is none.

    A reason of a single GPU counts only if there is no general one, because another GPU may do.
    Of the GPUs, the one whose lowest tier is highest is closest to becoming free. Counts of GPUs
    never lead where a GPU has a reason that is not a contention: too few GPUs are free for that
    reason.
    """
    single = [each for each in reasons if each.gpu is not None]
    of_each_gpu = _by_gpu(single)
    is_contended = any(
        all(each.tier is Tier.CONTENTION for each in of_gpu) for of_gpu in of_each_gpu
    )
    hidden = COUNTS if single and not is_contended else {BlockerCode.OTHER_GPUS.value}
    general = [each for each in reasons if each.gpu is None and each.code not in ABOUT_GPUS]
    general = [each for each in general if each.code not in hidden]
    if general:
        return general[0]
    if not of_each_gpu:
        return max(reasons, key=lambda reason: reason.tier, default=None)
    nearest = max(of_each_gpu, key=lambda of_gpu: min(each.tier for each in of_gpu))
    # Load changes within minutes; what holds the GPU beside it does not.
    return min(nearest, key=lambda each: (each.code in LOAD_CODES, each.tier))


def _by_gpu(reasons: Iterable[Reason]) -> list[list[Reason]]:
    """All constraints of each GPU together."""
    of_gpu: dict[int | None, list[Reason]] = {}
    for reason in reasons:
        of_gpu.setdefault(reason.gpu, []).append(reason)
    return list(of_gpu.values())


def grouped(reasons: Iterable[Reason]) -> list[Group]:
    """Reasons by tier."""
    by_tier = groupby(reasons, key=lambda reason: reason.tier)
    return [Group(TIER_WORDS[tier], tuple(group)) for tier, group in by_tier]


def _reason(stored: Mapping[str, Any]) -> Reason:
    until, text = stored.get("until"), stored.get("text") or ""
    return Reason(
        code=stored.get("code") or "",
        text=text,
        headline=stored.get("headline") or text,
        next_step=stored.get("next_step") or "",
        # Blockers of an older version have no tier; they concerned resources of others.
        tier=Tier(stored.get("tier") or Tier.CONTENTION),
        requested=stored.get("requested"),
        available=stored.get("available"),
        holder=stored.get("holder"),
        until=_moment(until) if until else None,
        gpu=stored.get("gpu"),
        job=stored.get("job"),
        array=stored.get("array"),
        never=bool(stored.get("never")),
    )


def body(blocker: Blocker) -> dict[str, Any]:
    """A blocker as it is stored with its job, and given out by REST."""
    return to_row(blocker) | {
        "text": text(blocker),
        "headline": headline(blocker),
        "next_step": condition(blocker),
        "available": available(blocker),
        "holder": holder(blocker),
        "job": blocker.job,
    }


def available(blocker: Blocker) -> str | None:
    """The available amount in REST answers. A summary of other GPUs has the reasons there."""
    return None if blocker.code is BlockerCode.OTHER_GPUS else blocker.available


def holder(blocker: Blocker) -> str | None:
    """The holder in REST answers."""
    if blocker.array is not None:
        return f"array {blocker.array}"
    if blocker.holder is not None:
        return ", ".join([blocker.holder, *(f"job {job}" for job in blocker.jobs)])
    return lower_first(jobs(blocker)) or None


def log_entry(code: str, at: datetime) -> str:
    """From `at` on, this is the main blocker."""
    return f"{int(at.timestamp())}{log_ending(code)}"


def log_ending(code: str) -> str:
    """By what an entry with this code is recognised."""
    return f" {code};"


def seconds_by_blocker(log: str, since: float, until: float) -> dict[str, float]:
    """Seconds with each main blocker in that time (epoch seconds), without unreadable parts."""
    marks = [mark for mark in map(_mark, log.split(";")) if mark is not None]
    seconds_by_code: dict[str, float] = defaultdict(float)
    for (begin, code), (end, _) in pairwise([*marks, (until, "")]):
        inside = min(end, until) - max(begin, since)
        if inside > 0:
            seconds_by_code[code] += inside
    return dict(seconds_by_code)


def log_spans(log: str, codes: Collection[str], until: float) -> list[tuple[float, float]]:
    """(begin, end) of each time with one of these main blockers, in epoch seconds."""
    marks = [mark for mark in map(_mark, log.split(";")) if mark is not None]
    return [
        (begin, min(end, until))
        for (begin, code), (end, _) in pairwise([*marks, (until, "")])
        if code in codes and begin < until
    ]


def longest_blocker(log: str, since: float, until: float) -> str:
    """The blocker that the job waited for longest; "" = unknown."""
    seconds_by_code = seconds_by_blocker(log, since, until)
    return max(seconds_by_code, key=lambda code: seconds_by_code[code], default="")


def _mark(text: str) -> tuple[float, str] | None:
    at, _, code = text.partition(" ")
    return (float(at), code) if at.isdigit() and code else None
