"""Step: read what running jobs report, and store their progress and expected ends."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta
from pathlib import Path

from monitor.models import Claim
from monitor.runtime.policy import Guard
from monitor.runtime.rows.database import TEXT_MARK, PreparedQuery
from monitor.runtime.rows.item_isolation import ItemIsolation
from monitor.runtime.rows.wakeups import wake
from scheduler.execution import policy
from scheduler.execution.policy import Progress
from scheduler.execution.steps.specs import SpecWriter
from scheduler.facts.jobs import Ends, RunTime
from scheduler.jobs.rows.durations import Durations
from scheduler.models import Attempt
from scheduler.queue.planner.forecast_classes import expected_end
from scheduler.runner import files

EVERY = timedelta(seconds=1)
KIND = "JOB_STEP_FAILED"
Change = tuple[Attempt, Progress | None, Ends | None, datetime | None]


def running_attempts(host: str) -> list[Attempt]:
    """The attempts on this host whose processes run, with their jobs and owners."""
    return sorted(_RUNNING.rows(host), key=lambda attempt: attempt.pk)


# Compiled once, because it is read each second.
_RUNNING = PreparedQuery(
    lambda host: Attempt.objects.filter(
        host=host, ended_at=None, started_at__isnull=False
    ).select_related("job__owner"),
    TEXT_MARK,
)


def progress_of(attempt: Attempt) -> Progress | None:
    """None: the job has reported none."""
    if attempt.progress is None:
        return None
    return Progress(attempt.progress, attempt.progress_message)


def ends_of(attempt: Attempt) -> Ends | None:
    """None: nothing says when it ends, or it has ended."""
    if attempt.ended_at or attempt.ends_p50_at is None or attempt.ends_p90_at is None:
        return None
    return Ends(attempt.ends_p50_at, attempt.ends_p90_at)


def usual_run_time(attempt: Attempt, durations: Durations) -> RunTime | None:
    """The run time by estimate, limit or history; None: the job has none of them."""
    job = attempt.job
    owner, limit, estimate = job.owner.username, job.time_limit_s, job.estimate_s
    if limit is None and estimate is None and durations(owner, job.name) is None:
        return None
    return durations.expect(owner, job.name, _seconds(limit), _seconds(estimate))


def _seconds(value: int | None) -> timedelta | None:
    return None if value is None else timedelta(seconds=value)


def store(
    attempt: Attempt, progress: Progress | None, ends: Ends | None, reported_at: datetime | None
) -> bool:
    """Store both with the attempt and its claims. False: it has ended meanwhile."""
    fraction = progress.fraction if progress else None
    is_stored = Attempt.objects.filter(pk=attempt.pk, ended_at=None).update(
        progress=fraction,
        progress_message=progress.message if progress else "",
        progress_at=reported_at,
        ends_p50_at=ends.p50 if ends else None,
        ends_p90_at=ends.p90 if ends else None,
    )
    if is_stored and attempt.gpu_uuids:
        claims = Claim.objects.filter(
            host=attempt.host, freed_at=None, job_ref=str(attempt.job_id), until_at=None
        )
        claims.update(progress=fraction, ends_at=ends.p50 if ends else None)
        if fraction is not None and attempt.job.worker_batch is None:
            # It works, also if the driver lists no process of it. A worker says it by itself.
            claims.filter(phase="").update(phase="busy")
    return bool(is_stored)


class ProgressStep:
    """`step(now)` reads the files of each running job of `host`; at most once a second."""

    def __init__(self, guard: Guard, host: str, specs: SpecWriter) -> None:
        self._guard = guard
        self._host = host
        self._specs = specs
        self._durations = Durations()
        self._isolation = ItemIsolation(host, "progress", guard)
        self._read_at: datetime | None = None
        # Length of the log when it was read, by attempt. Saves work only.
        self._log_sizes: dict[int, int] = {}

    def step(self, now: datetime) -> list[int]:
        """Returns the jobs whose rows were changed."""
        if self._read_at is not None and timedelta() <= now - self._read_at < EVERY:
            return []
        self._read_at = now
        running = running_attempts(self._host)
        if ended := self._log_sizes.keys() - {attempt.pk for attempt in running}:
            self._read_last(ended, now)
        self._log_sizes = {a.pk: self._log_sizes.get(a.pk, -1) for a in running}
        if not running:
            return []
        self._durations.refresh(now)
        looked = self._isolation.each(
            running, _name, lambda attempt: self._look(attempt, now), now, KIND
        )
        changes = [change for _, change in looked if change is not None]
        if changes:
            self._store(changes, now)
        return [attempt.job_id for attempt, *_ in changes]

    def _read_last(self, ended: Collection[int], now: datetime) -> None:
        """Store what these attempts reported between the last step and their end.

        An attempt that began and ended between two steps has no progress, which saves two
        statements for each short job.
        """
        rows = Attempt.objects.filter(pk__in=ended).select_related("job__owner").order_by("pk")
        with self._guard():
            self._isolation.each(rows, _name, lambda a: self._store_last(a, now), now, KIND)
            wake("live")

    def _store_last(self, attempt: Attempt, now: datetime) -> None:
        last = self._reported(attempt)
        if last is not None and last != progress_of(attempt):
            attempt.progress, attempt.progress_message = last.fraction, last.message
            attempt.progress_at = now
            attempt.save(update_fields=["progress", "progress_message", "progress_at"])

    def _store(self, changes: list[Change], now: datetime) -> None:
        with self._guard():
            self._isolation.each(
                changes, lambda c: f"row of {_name(c[0])}", lambda c: store(*c), now, KIND
            )
            wake("live")

    def _look(self, attempt: Attempt, now: datetime) -> Change | None:
        """Values to store; None: nothing has changed enough."""
        old, reported_at = progress_of(attempt), attempt.progress_at
        new = self._reported(attempt)
        is_news = new is not None and policy.is_news(old, new, reported_at, now)
        progress, at = (new, now) if is_news else (old, reported_at)
        begun = attempt.started_at or attempt.placed_at
        usual = usual_run_time(attempt, self._durations)
        limit = _seconds(attempt.job.time_limit_s)
        run_time = policy.run_time(begun, progress, at, usual, limit)
        ends = expected_end(begun, run_time, now)
        if is_news or policy.has_moved(ends_of(attempt), ends, now):
            return attempt, progress, ends, at
        return None

    def _reported(self, attempt: Attempt) -> Progress | None:
        """By the file, else by the log. None: nothing new."""
        text = files.read_given(self._specs.given(attempt).progress, policy.LARGEST_FILE)
        progress = policy.parse(text.decode("utf-8", "replace")) if text else None
        return progress or self._in_log(attempt, self._specs.folder(attempt) / files.LOG)

    def _in_log(self, attempt: Attempt, log: Path) -> Progress | None:
        size = log.stat().st_size if log.exists() else 0
        if size == self._log_sizes[attempt.pk]:
            return None
        self._log_sizes[attempt.pk] = size
        return policy.in_log(files.read_tail(log, policy.LOG_TAIL))


def _name(attempt: Attempt) -> str:
    return f"progress of job {attempt.job_id}"
