"""Facts: why a job waits, in tiers: the first that applies is what to look at."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import IntEnum


class Tier(IntEnum):
    """Who or what can change it, the most telling first."""

    PERSON = 1
    NOT_YET = 2
    MY_LIMITS = 3
    MACHINE = 4
    CONTENTION = 5


TIER_WORDS = {
    Tier.PERSON: "needs a person",
    Tier.NOT_YET: "not yet",
    Tier.MY_LIMITS: "my limits",
    Tier.MACHINE: "state of the machine",
    Tier.CONTENTION: "others are there",
}


# Who holds back a job that its owner's share would have room for, were it worth all it is.
OTHERS_LOAD = "others' load"


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocker:
    """One reason why a job waits. Its key holds every dimension and never a clock.

    `until`: when it ends by itself, where that is known.
    """

    code: str
    text: str
    tier: Tier = Tier.CONTENTION
    requested: str | None = None
    available: str | None = None
    holder: str | None = None
    until: datetime | None = None

    @property
    def key(self) -> tuple[str, str | None, str | None, str | None]:
        return (self.code, self.requested, self.available, self.holder)
