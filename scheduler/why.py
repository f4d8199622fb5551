"""Why a job waits, for people: its reasons by tier, what the first of them says to do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from typing import Any

from scheduler.blockers import TIER_WORDS, Tier


@dataclass(frozen=True, slots=True)
class Reason:
    """A blocker as it was stored with its job. until None = nobody knows."""

    code: str
    text: str
    tier: Tier
    requested: str | None
    available: str | None
    holder: str | None
    until: datetime | None

    @property
    def words(self) -> str:
        return TIER_WORDS[self.tier]


@dataclass(frozen=True, slots=True)
class Group:
    """The reasons of one tier."""

    words: str
    reasons: tuple[Reason, ...]


def reasons(stored: Iterable[Mapping[str, Any]]) -> list[Reason]:
    """What is stored with a job, the most telling first."""
    return sorted(map(_reason, stored), key=lambda reason: reason.tier)


def grouped(stored: Iterable[Mapping[str, Any]]) -> list[Group]:
    """The same, a group for each tier."""
    found = groupby(reasons(stored), key=lambda reason: reason.tier)
    return [Group(TIER_WORDS[tier], tuple(group)) for tier, group in found]


def _reason(stored: Mapping[str, Any]) -> Reason:
    until = stored.get("until")
    return Reason(
        code=stored.get("code") or "",
        text=stored.get("text") or "",
        # An older version stored none; these were all about what others have.
        tier=Tier(stored.get("tier") or Tier.CONTENTION),
        requested=stored.get("requested"),
        available=stored.get("available"),
        holder=stored.get("holder"),
        until=datetime.fromisoformat(until) if until else None,
    )
