"""The values of an incident as they go out, declared once: REST, the command line and its page.

Their record is the row of the incident. Listed values are those of each facet, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import partial
from typing import Any, Protocol, TypeVar

from monitor.facts.answers import AnswerField

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


SEVERITIES = {"error": 2, "warning": 1}
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
    return SEVERITIES.get(part.severity, 0), part.waited_jobs > 0, harm(part.waited_s)
