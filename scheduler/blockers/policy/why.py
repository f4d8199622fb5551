"""Policy: stored blockers of a job for display: the headline, and all reasons by tier."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from typing import Any

from scheduler.facts.blockers import REPEATS_REQUEST, TIER_WORDS, BlockerCode, Tier

# Reasons that count several GPUs together.
ABOUT_GPUS = {BlockerCode.OTHER_GPUS.value, BlockerCode.GPU_UNSUITABLE.value}


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
        """(label, value, linked job) of each fact that the sentence does not state."""
        repeats = self.code in REPEATS_REQUEST
        is_gpu = self.gpu is not None and self.available == f"GPU {self.gpu}"
        facts = (
            ("requested", None if repeats else self.requested, None),
            ("on" if is_gpu else "available", self.available, None),
            # An array is named by its first job.
            ("held by", self.holder, self.array if self.job is None else self.job),
        )
        return [(label, value, job) for label, value, job in facts if value]


@dataclass(frozen=True, slots=True)
class Group:
    """The reasons of one tier."""

    words: str
    reasons: tuple[Reason, ...]


def explained(stored: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """What a page shows: the headline, and all reasons by tier."""
    sorted_reasons = reasons(stored)
    return {"headline": first(sorted_reasons), "why": grouped(sorted_reasons)}


def ahead(stored: Iterable[Mapping[str, Any]], now: datetime) -> list[dict[str, Any]]:
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
    Of these, the one with the highest tier is closest to ending by itself.
    """
    general = [each for each in reasons if each.gpu is None and each.code not in ABOUT_GPUS]
    if general:
        return general[0]
    return max(reasons, key=lambda reason: reason.tier, default=None)


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
