"""The report by tag, for REST and the page. Tags of jobs are visible to all users."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from reports.periods.facts import Period
from reports.render.engines import csv_file
from reports.tags import rows
from reports.tags.policy import TagUse, sums

LONGEST_NAME, LONGEST_USER = 40, 150
MOST_VALUES = 1000
CSV_COLUMNS = (
    "value",
    "jobs",
    "users",
    "gpu_hours_held",
    "gpu_hours_used",
    "efficiency",
    "coverage",
)


def report(tag: str, period: Period, user: str, now: datetime) -> dict[str, Any]:
    """The answer of GET /api/reports/tags/. user: "" = all."""
    attempts = rows.attempts(tag, period.since, period.until, user)
    uses = sums(attempts, period.since, period.until, now)
    return {
        "tag": tag,
        "from": period.since,
        "to": period.until,
        "total": len(uses),
        "values": [_value(use) for use in uses[:MOST_VALUES]],
    }


def _value(use: TagUse) -> dict[str, Any]:
    return {
        "value": use.value,
        "jobs": len(use.jobs),
        "users": len(use.users),
        "gpu_hours_held": use.held_s / 3600,
        "gpu_hours_used": use.used_s / 3600 if use.known_s else None,
        "efficiency": use.efficiency,
        "coverage": use.coverage,
    }


def as_csv(answer: dict[str, Any]) -> bytes:
    """The values of a report; the column of the tag has the heading "value"."""
    return csv_file.table(CSV_COLUMNS, answer["values"])
