"""Facts: names of the incident rules, their titles, and the badge of an open incident."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from monitor.facts.incidents import SEVERITIES, harm

SUSTAINED, FAIR_SHARE, MEMORY_HOG = "sustained", "fair_share", "memory_hog"
LEAK, IDLE_HELD, ORPHANED = "leak", "idle_held", "orphaned"
CLAIMED_EMPTY, UNCLAIMED, UNUSED_GPUS = "claimed_empty", "unclaimed", "unused_gpus"
OVER_MEMORY, EXTRA_GPUS, CPU_HOG = "over_memory", "extra_gpus", "cpu_hog"

# These rules find use that leaves little of a GPU for others.
HOG_RULES = (SUSTAINED, FAIR_SHARE, MEMORY_HOG)

# Titles of pages and badges of processes. Use that delays no job has a neutral title; the HOG_
# titles are for more than the fair share while other users wait.
TITLES = {
    SUSTAINED: "Heavy use outside the queue",
    FAIR_SHARE: "Above the fair share",
    MEMORY_HOG: "Most of a GPU's memory",
    LEAK: "Memory that only grows",
    IDLE_HELD: "Memory held idle",
    ORPHANED: "Orphaned memory",
    CLAIMED_EMPTY: "Booked but empty",
    UNCLAIMED: "Use outside the queue",
    UNUSED_GPUS: "Booked GPUs idle",
    OVER_MEMORY: "More memory than booked",
    EXTRA_GPUS: "More GPUs than booked",
    CPU_HOG: "Heavy CPU use",
}
HOG_TITLES = {SUSTAINED: "GPU hog", MEMORY_HOG: "Memory hog", CPU_HOG: "CPU hog"}
BADGES = {
    SUSTAINED: "heavy use",
    FAIR_SHARE: "hog",
    MEMORY_HOG: "much memory",
    LEAK: "leak",
    IDLE_HELD: "held idle",
    ORPHANED: "orphaned",
    CLAIMED_EMPTY: "booked, empty",
    UNCLAIMED: "outside the queue",
    UNUSED_GPUS: "GPUs idle",
    OVER_MEMORY: "over its memory",
    EXTRA_GPUS: "extra GPU",
    CPU_HOG: "heavy CPU use",
}
HOG_BADGES = {SUSTAINED: "hog", MEMORY_HOG: "memory hog", CPU_HOG: "CPU hog"}

# Rules about processes outside of jobs that name an owner.
ENFORCEABLE = (*HOG_RULES, IDLE_HELD, LEAK, UNCLAIMED, CPU_HOG)

# Without a waiting job, incidents of these rules are neutral use.
NEUTRAL_UNLESS_HOG = (*HOG_RULES, CPU_HOG)

# Worth knowing, but harmless by themselves.
HARMLESS_RULES = (UNCLAIMED,)


def title(rule: str, *, is_hog: bool) -> str:
    return (HOG_TITLES.get(rule) if is_hog else None) or TITLES.get(rule, rule)


def badge(rule: str, *, is_hog: bool) -> str:
    return (HOG_BADGES.get(rule) if is_hog else None) or BADGES.get(rule, rule)


Rank = tuple[int, int, float]
HARMLESS: Rank = (0, 0, 0.0)


def rank(severity: str, waited_s: float, since: datetime | None) -> Rank:
    """Greater is worse: by severity, then harm, then age. Harmless incidents are equal."""
    if severity not in SEVERITIES:
        return HARMLESS
    age = -since.timestamp() if since else 0.0
    return SEVERITIES[severity], harm(waited_s), age


@dataclass(frozen=True, slots=True)
class Badge:
    """An open incident in a word. Fields that change every few seconds are not compared.

    title: the rule as a heading. idle_since: since when the process holds memory without using
    it. gpu_uuid: None for an incident without a GPU. waited_s: seconds that jobs waited meanwhile.
    """

    word: str
    severity: str
    incident: int
    text: str = field(compare=False)
    title: str = ""
    gpu_uuid: str | None = None
    idle_since: datetime | None = None
    since: datetime | None = None
    waited_s: float = field(default=0.0, compare=False)

    @property
    def is_warning(self) -> bool:
        return self.severity != "info"

    @property
    def rank(self) -> Rank:
        return rank(self.severity, self.waited_s, self.since)


@dataclass(frozen=True, slots=True)
class Badges:
    """By (GPU, pid); `gpus`: the worst badge of each GPU, whatever its rule.

    open: all open incidents that are not muted, also those without a GPU; every page shows this
    count. harmful: how many of them are not harmless.
    worst: the worst of the harmful ones.
    """

    processes: Mapping[tuple[str, int], Badge] = field(default_factory=dict)
    gpus: Mapping[str, Badge] = field(default_factory=dict)
    open: int = 0
    harmful: int = 0
    worst: Badge | None = None


NONE = Badges()
