"""Waiting jobs that would start earlier if the processes of an incident ended, by the forecast."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from threading import Lock

from monitor.models import Incident
from scheduler.dispatch.steps import preview
from scheduler.models import Job
from scheduler.queue.planner.forecast.advice import latest_gain
from scheduler.queue.planner.forecast.forecast import Estimate

# A forecast of the whole queue is given again for this time, because several viewers ask for it.
KEPT, MOST_KEPT = timedelta(seconds=5), 64


@dataclass(frozen=True, slots=True)
class EarlierStart:
    """A job that would start earlier. before: its expected start now, None = unknown."""

    job: Job
    before: datetime | None
    start: datetime


@dataclass(frozen=True, slots=True)
class _Kept:
    at: datetime
    processes: set[tuple[str, int]]
    starts: list[EarlierStart]


_answers: dict[int, _Kept] = {}
_lock = Lock()


def earlier_starts(incident: Incident, now: datetime) -> list[EarlierStart] | None:
    """The jobs that would start earlier, the first to start first.

    None: it is not known, because no process outside the queue causes the incident, or because
    another engine plans the jobs.
    """
    processes = {
        (part.gpu_id, part.pid)
        for part in incident.parts
        if part.gpu_id and part.pid and not part.job_ref and part.closed_at is None
    }
    if not processes or not preview.is_planned_here():
        return None
    with _lock:
        kept = _answers.get(incident.pk)
        if kept is not None and kept.processes == processes and timedelta() <= now - kept.at < KEPT:
            return kept.starts
        before = preview.estimates(now)
        after = preview.estimates_without(incident.host, processes, now)
        starts = _compared(before, after, now)
        while len(_answers) >= MOST_KEPT:
            del _answers[next(iter(_answers))]
        _answers[incident.pk] = _Kept(now, processes, starts)
        return starts


def forget() -> None:
    """Drop the answers that are kept."""
    _answers.clear()


def _compared(
    before: Mapping[int, Estimate], after: Mapping[int, Estimate], now: datetime
) -> list[EarlierStart]:
    gains: dict[int, tuple[datetime | None, datetime]] = {}
    for job_id, estimate in after.items():
        current = before.get(job_id, preview.UNKNOWN).p50
        if estimate.p50 is not None and estimate.p50 <= latest_gain(current, now):
            gains[job_id] = (current, estimate.p50)
    jobs = Job.objects.filter(pk__in=gains).select_related("owner")
    starts = [EarlierStart(job, *gains[job.pk]) for job in jobs]
    return sorted(starts, key=lambda each: (each.start, each.job.pk))
