"""Incidents: the names of their rules, their badges, and their values as they go out.

The values are declared once, for REST, the command line and the page; their record is the row
of the incident. Listed values are those of each facet, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any, Protocol, TypeVar

from monitor.facts.formats import AnswerField

_listed = partial(AnswerField, is_listed=True)

INCIDENT_ANSWERS = (
    _listed("id", int, label="incident"),
    _listed("since", datetime, source="since_at", label="since"),
    AnswerField("user", str | None, "null = the owner is not known.", label="user"),
    AnswerField(
        "headline",
        str,
        "In one line: the text of the part that delays others most, and the number of other GPUs.",
        label="text",
    ),
    _listed("text", str),
    _listed("rule", str),
    _listed("severity", str, "info: no job waits. warning: others waited. error: for long."),
    AnswerField("host", str),
    _listed("gpu_uuid", str | None, source="gpu_id"),
    AnswerField("program", str | None),
    AnswerField("pid", int | None),
    AnswerField(
        "start_ticks",
        int | None,
        "Start of the process in clock ticks since the boot; with the pid, it names it.",
    ),
    AnswerField("job", str | None, source="job_ref"),
    AnswerField("job_owner", str | None),
    AnswerField("opened_at", datetime),
    AnswerField("last_seen_at", datetime),
    _listed("closed_at", datetime | None),
    AnswerField("lasts_s", float, title="Duration"),
    AnswerField("mean_pct", float | None, title="Mean"),
    AnswerField("peak_pct", float | None, title="Peak"),
    AnswerField("memory_bytes", int | None, title="Memory"),
    AnswerField(
        "measured_pct",
        float | None,
        "Share of the machine that the user takes.",
        title="Share of all GPUs",
    ),
    AnswerField(
        "expected_pct",
        float | None,
        "Fair share: the entitlement, or the target share if that is more.",
    ),
    AnswerField("coverage", float | None, "Part of the time for which the usage is known, 0 to 1."),
    AnswerField("waited_jobs", int),
    AnswerField("waited_s", float, "Total waiting time of other users meanwhile."),
    AnswerField(
        "is_hog",
        bool,
        "Above the own share while others waited, or memory held idle; else the use"
        " takes nothing from others.",
    ),
    AnswerField("acknowledged_at", datetime | None),
    AnswerField("acknowledged_by", str | None),
    AnswerField("rules", list[str], "Rules of all facets."),
    AnswerField("gpus", list[str], "UUIDs of all GPUs of the incident."),
    AnswerField(
        "explanation", str | None, "Visible to the owner and to operators.", is_private=True
    ),
    AnswerField("snoozed_until", datetime | None),
)
FACET_ANSWERS = tuple(field for field in INCIDENT_ANSWERS if field.is_listed)


# How much an incident delays others, and which part of it does most.


INFO, WARNING, ERROR = SEVERITIES = ("info", "warning", "error")
# Below it, and within a factor of two above it, waiting times count as equal: several incidents
# that delay the same jobs would change places all the time.
STEP_S = 300


def harm(waited_s: float) -> int:
    """The class of a delay: 0 below STEP_S, then one more for each doubling."""
    return int(waited_s // STEP_S).bit_length()


class Part(Protocol):
    """One rule of an incident on one GPU; see the row."""

    rule: Any
    gpu_id: Any
    text: Any
    severity: Any
    waited_jobs: Any
    waited_s: Any
    closed_at: Any


P = TypeVar("P", bound=Part)


def worst_part(parts: Sequence[P]) -> P:
    """The open part of an incident that delays other users most; `parts`: the lead first.

    Equal parts, and parts that are all closed: the lead.
    """
    return max((part for part in parts if part.closed_at is None), key=_harm, default=parts[0])


def headline(parts: Sequence[Part]) -> str:
    """An incident in one line: the text of its worst part, and on how many further GPUs it is."""
    worst = worst_part(parts)
    alike = {p.gpu_id for p in parts if p.rule == worst.rule and p.closed_at == worst.closed_at}
    more = len(alike - {worst.gpu_id, None})
    return f"{worst.text}; also on {more} other GPU{'s'[: more - 1]}" if more else str(worst.text)


def _harm(part: Part) -> tuple[int, bool, int]:
    return SEVERITIES.index(part.severity), part.waited_jobs > 0, harm(part.waited_s)


# Names of the incident rules, their titles, and the badge of an open incident.


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
    if severity == INFO:
        return HARMLESS
    age = -since.timestamp() if since else 0.0
    return SEVERITIES.index(severity), harm(waited_s), age


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
        return self.severity != INFO

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
