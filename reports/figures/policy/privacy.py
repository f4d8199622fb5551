"""Policy: what a viewer may see of a report. Own rows in full, others without a name."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from reports.figures.facts import GpuFigures, Report, UserFigures, Violation


def anonymised(report: Report, visible: Collection[str]) -> Report:
    """Users outside `visible` become "user 1", "user 2": in this report only, by GPU-hours held.

    Their findings, processes, patterns and advice are left out.
    """
    aliases = _aliases(report, visible)
    shown = frozenset(visible)
    return replace(
        report,
        users=tuple(_user(row, aliases) for row in report.users),
        violations=tuple(_violation(v, aliases) for v in report.violations),
        heavy_use=tuple(_violation(v, aliases) for v in report.heavy_use),
        open_incidents=tuple(f for f in report.open_incidents if f.user in shown),
        recommendations=tuple(
            r for r in report.recommendations if r.user is None or r.user in shown
        ),
        patterns=tuple(p for p in report.patterns if p.user in shown),
        gpus=tuple(_gpu(gpu, aliases) for gpu in report.gpus),
    )


def _aliases(report: Report, visible: Collection[str]) -> dict[str, str]:
    names = [row.user for row in report.users if row.user]
    names += [v.user for v in (*report.violations, *report.heavy_use) if v.user]
    names += [span.user for gpu in report.gpus for span in gpu.spans if span.user]
    hidden = [name for name in dict.fromkeys(names) if name not in visible]
    return {name: f"user {number}" for number, name in enumerate(hidden, 1)}


def _user(row: UserFigures, aliases: dict[str, str]) -> UserFigures:
    if row.user not in aliases:
        return row
    return replace(
        row,
        user=aliases[row.user],
        is_anonymous=True,
        trend=(),
        right_size=None,
        findings=(),
        further_findings=0,
    )


def _violation(v: Violation, aliases: dict[str, str]) -> Violation:
    if v.user not in aliases:
        return v
    return replace(
        v, program="process", pid=None, user=aliases[v.user], gpus=(), url="", is_anonymous=True
    )


def _gpu(gpu: GpuFigures, aliases: dict[str, str]) -> GpuFigures:
    spans = tuple(
        replace(span, user=aliases[span.user], is_anonymous=True) if span.user in aliases else span
        for span in gpu.spans
    )
    return replace(gpu, spans=spans, marks=())


def only(rows: Iterable[UserFigures], names: Collection[str] | None) -> tuple[UserFigures, ...]:
    """The rows of these users; None: all."""
    return tuple(row for row in rows if names is None or row.user in names)
