"""Rows: clean-ups and their previews."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import Model, Q, QuerySet

from monitor.facts.input_rules import escaped
from monitor.journal.rows import audit, counters
from monitor.runtime.rows.database import compiled_once
from monitor.usage.rows.rollups import RetentionPeriods
from scheduler.disk.policy import Candidate, CleanResult
from scheduler.facts.jobs import JobState
from scheduler.models import CleaningRun, Job

State = CleaningRun.State
# A run that has not been heard of for longer was killed; it is taken up again.
DEAD_AFTER = timedelta(minutes=3)
MOST_LISTED = 500
MOST_PROBLEMS = 20
KEEP = timedelta(days=90)
CLEANED_BYTES = "disk cleaned"


class Busy(Exception):
    """A clean-up of this host is under way; `run` is it."""

    def __init__(self, run: CleaningRun) -> None:
        super().__init__(f"Clean-up {run.pk} of {run.host} is under way.")
        self.run = run


@transaction.atomic
def request(host: str, path: str, *, dry_run: bool, by: str, now: datetime) -> CleaningRun:
    """A new run that waits. Raises Busy."""
    busy = CleaningRun.objects.filter(host=host, state__in=(State.WAITING, State.RUNNING)).first()
    if busy is not None:
        raise Busy(busy)
    run = CleaningRun.objects.create(
        host=host, path=path, dry_run=dry_run, asked_by=by, asked_at=now, at=now
    )
    if not dry_run:
        text = f"Asked for a clean-up of {path or 'all watched folders'} on {host}."
        audit.note("DISK_CLEANING_ASKED", text, by=by, now=now, subject=f"clean-up {run.pk}")
    return run


def take(host: str, now: datetime) -> CleaningRun | None:
    """The next run to work on, marked as running; None = there is none."""
    run = _open(host, now).order_by("pk").first()
    if run is None:
        return None
    taken = _open(host, now).filter(pk=run.pk).update(state=State.RUNNING, at=now)
    run.state, run.at = State.RUNNING, now
    return run if taken else None


def waits(host: str, now: datetime) -> bool:
    return any(row.state == State.WAITING or row.at < now - DEAD_AFTER for row in _unfinished(host))


@compiled_once
def _unfinished(host: str) -> QuerySet[CleaningRun]:
    rows = CleaningRun.objects.filter(host=host, state__in=(State.WAITING, State.RUNNING))
    return rows.only("state", "at")


def _open(host: str, now: datetime) -> QuerySet[CleaningRun]:
    is_dead = Q(state=State.RUNNING, at__lt=now - DEAD_AFTER)
    return CleaningRun.objects.filter(Q(state=State.WAITING) | is_dead, host=host)


def last_ended(host: str) -> CleaningRun | None:
    """The newest clean-up that was no preview."""
    ended = CleaningRun.objects.filter(host=host, dry_run=False, ended_at__isnull=False)
    return ended.order_by("-pk").first()


def recent(most: int = 10) -> list[CleaningRun]:
    return list(CleaningRun.objects.order_by("-pk").defer("listed")[:most])


def unfinished_jobs() -> frozenset[str]:
    """Numbers of jobs that have not ended."""
    ids = Job.objects.exclude(state=JobState.FINISHED.value).values_list("pk", flat=True)
    return frozenset(map(str, ids))


def preview(run: CleaningRun, all_files: Sequence[Candidate], chosen: Iterable[Candidate]) -> None:
    """Store the candidates; `chosen` are those that a clean-up would delete now."""
    deleted = list(chosen)
    run.candidates = len(all_files)
    run.candidate_bytes = sum(candidate.file.disk_bytes for candidate in all_files)
    if run.dry_run:
        run.freed_bytes = sum(candidate.file.disk_bytes for candidate in deleted)
        run.figures = {"would be deleted": len(deleted)} if deleted else {}
        run.listed = [_line(candidate, "would be deleted") for candidate in deleted[:MOST_LISTED]]
    run.save()


def _line(candidate: Candidate, result: str) -> dict[str, object]:
    return {
        "rule": candidate.rule.value,
        "path": candidate.file.shown_path,
        "bytes": candidate.file.disk_bytes,
        "modified": candidate.file.mtime_ns / 1e9,
        "copied": candidate.needs_copy,
        "result": result,
    }


def add_result(run: CleaningRun, candidate: Candidate, result: CleanResult) -> None:
    """Count the result of a file in the run, which is saved by `save_progress`."""
    figures = Counter(run.figures)
    figures[result.value] += 1
    run.figures = dict(figures)
    if result is CleanResult.DELETED:
        run.freed_bytes += candidate.file.disk_bytes
    if len(run.listed) < MOST_LISTED:
        run.listed.append(_line(candidate, result.value))


def record_deletion(run: CleaningRun, candidate: Candidate, folder: str, now: datetime) -> None:
    """One entry of the audit for the file, and the metric, in the transaction of the deletion."""
    file = candidate.file
    after = {"bytes": file.disk_bytes, "size": file.size, "copied": candidate.needs_copy}
    audit.note(
        "FILE_CLEANED",
        f"Deleted {file.shown_path} ({candidate.rule.value}).",
        by=run.asked_by,
        now=now,
        subject=f"clean-up {run.pk}",
        after=after,
    )
    counters.add(CLEANED_BYTES, folder[:150], file.disk_bytes)


def add_problem(run: CleaningRun, problem: str) -> None:
    """The text may name files whose names no database takes."""
    text = escaped(problem)
    if text not in run.problems and len(run.problems) < MOST_PROBLEMS:
        run.problems.append(text)


def save_progress(run: CleaningRun, state: State, now: datetime) -> None:
    run.state, run.at = state, now
    if state in (State.DONE, State.FAILED):
        run.ended_at = now
    run.save()


def too_old(_keep: RetentionPeriods, now: datetime) -> Iterator[QuerySet[Model]]:
    """For pruning. The audit keeps what was deleted."""
    yield CleaningRun.objects.filter(ended_at__lt=now - KEEP)
