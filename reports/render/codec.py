"""A report as JSON: the names are stable. Unknown figures are null, hours are GPU-hours."""

from __future__ import annotations

from typing import Any

from msgspec.structs import asdict

from reports.figures.facts import (
    YARDSTICKS,
    FindingFact,
    GpuFigures,
    GpuHours,
    Report,
    Table,
    Totals,
    UserFigures,
    Violation,
)
from reports.figures.policy.violations import line, use_line
from reports.render.wording import tables, text

# Of an hour or a percent: finer differences are noise.
DIGITS = 6


def as_json(report: Report) -> dict[str, Any]:
    """All figures of the report."""
    period = report.period
    return {
        "period": {
            "name": period.name,
            "label": period.label,
            "from": period.since.isoformat(),
            "to": period.until.isoformat(),
            "zone": period.zone,
            "hours": rounded(period.hours),
        },
        "scope": report.scope.text,
        "made_at": report.made_at.isoformat(timespec="seconds"),
        "coverage": part(report.coverage_pct),
        "least_coverage": part(report.least_coverage_pct),
        "notes": list(report.notes),
        "summary": list(text.sentences(report)),
        "wider_than_scope": tables.wider_figures(report),
        "totals": _totals(report.totals),
        "users": [user(row) for row in report.users],
        "violations": [_violation(v) | {"text": line(v)} for v in report.violations],
        "heavy_use": [_violation(v) | {"text": use_line(v)} for v in report.heavy_use],
        "open_incidents": [_finding(finding) for finding in report.open_incidents],
        "recommendations": [asdict(r) for r in report.recommendations],
        "queue": [_rounded(asdict(row)) for row in report.queue],
        "blockers": [_rounded(asdict(row)) for row in report.blockers],
        "incidents": [_rounded(asdict(row)) for row in report.incidents],
        "operation": _rounded(asdict(report.operation)),
        "patterns": [asdict(row) for row in report.patterns],
        "gpus": [_gpu(gpu) for gpu in report.gpus],
        "heat": [[rounded(value) for value in row] for row in report.heat],
        "waits": [{"t": t, "hours": rounded(hours)} for t, hours in report.waits],
        "sections": [_section(table) for table in report.sections],
    }


def user(row: UserFigures) -> dict[str, Any]:
    """One user; the first eleven names are those of the CSV's first columns."""
    return {
        "user": row.user,
        "gpu_hours_held": rounded(row.held),
        "gpu_hours_used": rounded(row.used),
        "gpu_hours_idle_held": rounded(row.idle_held),
        "efficiency": rounded(row.efficiency),
        "coverage": rounded(row.coverage),
        "entitled_pct": rounded(row.entitled_pct),
        "entitlement_pct": rounded(row.entitled_pct),
        "target_share_pct": rounded(row.target_pct),
        "use_pct": rounded(row.share_pct),
        "share_pct": rounded(row.share_pct),
        "waited_hours": rounded(row.waited_hours),
        "caused_wait_hours": rounded(row.caused_wait_hours),
        "energy_kwh": rounded(row.energy_kwh),
        "gpu_hours_booked_empty": rounded(row.booked_empty),
        "gpu_hours_unknown": rounded(row.unknown),
        "memory_gib_hours": rounded(row.memory_gib_hours),
        "target_pct": rounded(row.target_pct),
        "overuse_hours": rounded(row.overuse_hours),
        "idle_energy_kwh": rounded(row.idle_energy_kwh),
        "right_size": row.right_size.text if row.right_size else None,
        "is_anonymous": row.is_anonymous,
        "trend": [
            {
                "from": point.since.isoformat(),
                "gpu_hours_used": rounded(point.used),
                "efficiency": rounded(point.efficiency),
            }
            for point in row.trend
        ],
        "findings": [_finding(finding) for finding in row.findings],
        "further_findings": row.further_findings,
    }


def rounded(value: float | None) -> float | None:
    return None if value is None else round(float(value), DIGITS)


def part(pct: float | None) -> float | None:
    """A percentage as a part, 0 to 1."""
    return None if pct is None else round(pct / 100, DIGITS)


def _totals(totals: Totals) -> dict[str, Any]:
    per_100 = totals.per_100
    names = ("used", "idle_held", "booked_empty")
    return {
        "gpus": totals.gpus,
        "gpu_hours": gpu_hours(totals.gpu_hours),
        "is_reconciled": totals.gpu_hours.is_reconciled,
        "people": {**gpu_hours(totals.people), "held": rounded(totals.people.held)},
        "of_100_held": dict(zip(names, map(rounded, per_100), strict=True)) if per_100 else None,
        "wasted_of_100_elsewhere": dict(YARDSTICKS),
        "used_before": rounded(totals.used_before),
        "waited_hours": rounded(totals.waited_hours),
        "waited_while_idle_hours": rounded(totals.waited_idle_hours),
        "energy_kwh": rounded(totals.energy_kwh),
        "idle_energy_kwh": rounded(totals.idle_energy_kwh),
        "costs": _rounded(asdict(totals.costs)),
    }


def gpu_hours(hours: GpuHours) -> dict[str, float | None]:
    return {name: rounded(value) for name, value in asdict(hours).items()}


def _violation(v: Violation) -> dict[str, Any]:
    return {**_rounded(asdict(v)), "gpus": list(v.gpus)}


def _finding(finding: FindingFact) -> dict[str, Any]:
    return {**_rounded(asdict(finding)), "since": finding.since.isoformat()}


def _gpu(gpu: GpuFigures) -> dict[str, Any]:
    return {
        "uuid": gpu.uuid,
        "name": gpu.name,
        "gpu_hours": gpu_hours(gpu.hours),
        "energy_kwh": rounded(gpu.energy_kwh),
    }


def _section(table: Table) -> dict[str, Any]:
    return {
        "key": table.key,
        "title": table.title,
        "head": list(table.head),
        "rows": [list(row) for row in table.rows],
        "note": table.note,
    }


def _rounded(values: dict[str, Any]) -> dict[str, Any]:
    return {
        name: rounded(value) if isinstance(value, float) else value
        for name, value in values.items()
    }
