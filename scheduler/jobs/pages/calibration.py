"""The section of the status page on the accuracy of predicted starts."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from django.utils import timezone

from monitor.facts.formats import duration
from scheduler.jobs.lifecycle.policy.calibration import ENOUGH_RUNS, PERIODS, RunsKnown
from scheduler.jobs.lifecycle.rows import durations

TITLES = {
    RunsKnown.NONE: "none",
    RunsKnown.FEW: f"fewer than {ENOUGH_RUNS}",
    RunsKnown.ENOUGH: f"{ENOUGH_RUNS} or more",
}


@dataclass(frozen=True, slots=True)
class CalibrationLine:
    title: str
    period: str
    starts: int
    error: timedelta | None
    before_p90_pct: float | None


def calibration_lines() -> list[CalibrationLine]:
    """By earlier runs and period; [] if no predicted job has started lately."""
    rows = durations.calibration(timezone.now())
    if not any(row.starts for row in rows):
        return []
    return [
        CalibrationLine(
            title=TITLES[row.runs],
            period=duration(PERIODS[row.period].total_seconds()),
            starts=row.starts,
            error=row.error,
            before_p90_pct=None if row.before_p90 is None else 100 * row.before_p90,
        )
        for row in rows
    ]
