"""The one-page form of a report: what an operator needs to act on one incident."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct
from msgspec.structs import replace

from monitor.facts.input_rules import escaped
from reports.figures.facts import Report
from reports.figures.policy import advice
from reports.render.wording import tables
from reports.render.wording import text as texts

# They fit on one page, also with the longest names.
MOST_USERS, MOST_VIOLATIONS, MOST_ADVICE, MOST_FINDINGS, MOST_GPUS = 6, 4, 3, 3, 8
LONGEST_LINE = 400
TABLES, PICTURES = ("users",), ("shares", "timeline")


class Cover(Struct, frozen=True):
    """Subject of the page: its title, and the text of the incident."""

    title: str
    text: str


def shortened(report: Report) -> Report:
    """The same figures with fewer rows: the page's users, GPUs with use, and main advice."""
    users = tuple(
        replace(row, findings=row.findings[:MOST_FINDINGS]) for row in report.users[:MOST_USERS]
    )
    names = {row.user for row in users}
    gpus = [gpu for gpu in report.gpus if any(span.user in names for span in gpu.spans)]
    return replace(
        report,
        users=users,
        violations=report.violations[:MOST_VIOLATIONS],
        recommendations=tuple(
            replace(advice, text=cut(advice.text))
            for advice in report.recommendations[:MOST_ADVICE]
        ),
        gpus=tuple(gpus[:MOST_GPUS]),
        heavy_use=(),
        notes=(*report.notes, *_left_out(report)),
        open_incidents=report.open_incidents[:MOST_FINDINGS],
        sections=(),
    )


def _left_out(report: Report) -> tuple[str, ...]:
    """A note of what does not fit on the page."""
    counts = (
        ("user", len(report.users) - MOST_USERS),
        ("violation", len(report.violations) - MOST_VIOLATIONS),
        ("open incident", len(report.open_incidents) - MOST_FINDINGS),
        ("recommendation", len(report.recommendations) - MOST_ADVICE),
    )
    more = [f"{n} more {word}{'s' if n > 1 else ''}" for word, n in counts if n > 0]
    return (f"Not on this page: {', '.join(more)}.",) if more else ()


def cut(words: str) -> str:
    """At most LONGEST_LINE characters."""
    return words if len(words) <= LONGEST_LINE else f"{words[: LONGEST_LINE - 1]}…"


def text(report: Report, cover: Cover) -> str:
    return "\n".join(map(escaped, lines(shortened(report), cover))) + "\n"


def lines(report: Report, cover: Cover) -> Iterator[str]:
    """Of a shortened report."""
    yield cover.title
    yield texts.subtitle(report)
    yield from report.notes
    yield ""
    yield from cut(cover.text).splitlines()
    yield ""
    yield from texts.sentences(report)
    yield from texts.headline(report.totals)
    yield ""
    yield "Users:"
    yield from texts.aligned(tables.users(report))
    yield ""
    yield from texts.judged(report)
    yield f"Recommendation: {advice.headline(report)}"
    yield from (f"- {recommendation.text}" for recommendation in report.recommendations)
