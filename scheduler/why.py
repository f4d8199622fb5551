"""Why a job waits, for people: its reasons by tier, what the first of them says to do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from typing import Any

from scheduler.blockers import TIER_WORDS, Tier

# What was asked is a moment, or a word, that stands in the sentence.
SAID = {"BeginTime", "Backoff", "Dependency"}


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
    def facts(self) -> list[tuple[str, str, int | None]]:
        """(word, value, the job that it names), of what its sentence does not say already."""
        on_gpu = (self.available or "").startswith("GPU ")
        found = (
            ("asked", None if self.code in SAID else self.requested),
            ("on" if on_gpu else "there", self.available),
            ("held by", self.holder),
        )
        return [(word, value, _job(value)) for word, value in found if value]


def _job(value: str) -> int | None:
    """An array is named by its first job."""
    word, _, number = value.partition(" ")
    return int(number) if word in {"job", "array"} and number.isdecimal() else None


@dataclass(frozen=True, slots=True)
class Group:
    """The reasons of one tier."""

    words: str
    reasons: tuple[Reason, ...]


def ahead(stored: Iterable[Mapping[str, Any]], now: datetime) -> list[dict[str, Any]]:
    """The same; an end that has passed unfulfilled is not known any more.

    Reasons are written when they change, and their ends may move meanwhile.
    """
    return [
        {**each, "until": None} if (at := each.get("until")) and _moment(at) <= now else {**each}
        for each in stored
    ]


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text)


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
        until=_moment(until) if until else None,
    )
