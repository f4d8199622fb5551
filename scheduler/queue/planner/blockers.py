"""Policy: blockers as stored with a job and as given out: sentences, reasons by tier, times."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from itertools import groupby, pairwise
from typing import Any

from msgspec import Struct

from scheduler.facts.blockers import (
    LOAD_CODES,
    REPEATS_REQUEST,
    TIER_WORDS,
    Blocker,
    BlockerCode,
    Tier,
    to_row,
)
from scheduler.queue.wording import condition, headline, jobs, lower_first, text

# Reasons that count several GPUs together.
ABOUT_GPUS = {BlockerCode.OTHER_GPUS.value, BlockerCode.GPU_UNSUITABLE.value}
# Reasons that only say how many GPUs can or cannot take the job.
COUNTS = {BlockerCode.OTHER_GPUS.value, BlockerCode.GPU_COUNT.value}
# Of a job whose blocker changes more often, the oldest changes are dropped.
LONGEST_LOG = 4000


class Reason(Struct, frozen=True):
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


class Group(Struct, frozen=True):
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
