"""Policy: how good the first predictions of starts were, by the runs known when they were made."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from statistics import median

# From this number of runs on, their spread is known.
ENOUGH_RUNS = 5
PERIODS = {"24h": timedelta(hours=24), "30d": timedelta(days=30)}
LONGEST = max(PERIODS.values())


class RunsKnown(StrEnum):
    """How many earlier runs of the same owner and name a prediction could use."""

    NONE = "none"
    FEW = "few"
    ENOUGH = "enough"

    @classmethod
    def of(cls, runs: int) -> RunsKnown:
        if not runs:
            return cls.NONE
        return cls.FEW if runs < ENOUGH_RUNS else cls.ENOUGH


@dataclass(frozen=True, slots=True)
class PredictedStart:
    """The start of a job, and its first prediction. p90: None = it had only a median.

    runs: earlier runs of the same owner and name when the job was submitted.
    """

    started_at: datetime
    p50: datetime
    p90: datetime | None
    runs: int


@dataclass(frozen=True, slots=True)
class Calibration:
    """Predictions of the starts in a period. error: median of the difference to p50.

    before_p90: part of the starts before it, 0..1. None: no such start.
    """

    period: str
    runs: RunsKnown
    starts: int
    error: timedelta | None
    before_p90: float | None


def calibrations(starts: Iterable[PredictedStart], now: datetime) -> list[Calibration]:
    """By the number of known runs and by period."""
    past = [(RunsKnown.of(start.runs), start) for start in starts]
    return [
        _calibration(
            period, runs, [s for kind, s in past if kind is runs and now - s.started_at <= length]
        )
        for runs in RunsKnown
        for period, length in PERIODS.items()
    ]


def _calibration(period: str, runs: RunsKnown, starts: list[PredictedStart]) -> Calibration:
    errors = [abs(start.started_at - start.p50).total_seconds() for start in starts]
    is_before = [start.started_at <= start.p90 for start in starts if start.p90 is not None]
    return Calibration(
        period=period,
        runs=runs,
        starts=len(starts),
        error=timedelta(seconds=median(errors)) if errors else None,
        before_p90=sum(is_before) / len(is_before) if is_before else None,
    )
