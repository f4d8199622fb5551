"""Step: the files of jobs that ended long ago go, a little at a time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

from django.db.models import Exists, Max, Model, OuterRef, Q, QuerySet, Sum
from msgspec import Struct

from monitor.runtime.probes import disk_space
from monitor.runtime.rows.item_isolation import ItemIsolation
from monitor.thresholds import rows as thresholds
from monitor.usage.rows.rollups import RetentionPeriods
from scheduler.facts.jobs import JobState
from scheduler.jobs.lifecycle.policy import RetainedFiles, RetentionPolicy, select_expired
from scheduler.models import Attempt, Job, JobDependency, JobInput
from scheduler.runner import accounts, clearing, files

# Number of folders that are measured in one step.
MEASURED = 500


class Clearer(Struct, frozen=True):
    """`step(now)` works for at most `seconds`; the rest is done by the next step."""

    host: str
    data: Path
    checkpoints: Path | None = None
    seconds: float = 4.0

    def step(self, now: datetime) -> list[int]:
        """Returns the jobs whose files were deleted."""
        until = time.monotonic() + self.seconds
        logs, *others = roots = accounts.job_file_roots(self.data, self.checkpoints)
        self._measure(logs, others, until, now)
        due = self._due("files_bytes", logs, now) | {
            job for root in others[:1] for job in self._due("saved_bytes", root, now)
        }
        isolation = ItemIsolation(self.host, "clearing")
        tried = isolation.each(
            sorted(due),
            lambda job: f"files of job {job}",
            lambda job: self._clear(job, roots, until, now),
            now,
        )
        for root in roots:
            clearing.empty(root, until)
        return [job for job, is_gone in tried if is_gone]

    def _clear(self, job: int, roots: list[Path], until: float, now: datetime) -> bool:
        if time.monotonic() >= until:
            return False
        moved = [clearing.move_aside(root, str(job)) for root in roots]
        if all(moved):
            self._ended().filter(job_id=job).update(files_gone_at=now)
        return all(moved)

    def _ended(self) -> QuerySet[Attempt]:
        """Attempts on this host with files, of jobs that will not run again."""
        return Attempt.objects.filter(
            host=self.host, files_gone_at=None, job__state=JobState.FINISHED.value
        )

    def _due(self, column: str, root: Path, now: datetime) -> set[int]:
        """By what lies in one folder, on its disk."""
        rows = self._ended().order_by().values_list("job_id")
        retained = [RetainedFiles(*row) for row in rows.annotate(Max("job__ended_at"), Sum(column))]
        policy = thresholds.current(RetentionPolicy)
        return {
            files.job_id for files in select_expired(retained, policy, _usable_bytes(root), now)
        }

    def _measure(self, logs: Path, others: list[Path], until: float, now: datetime) -> None:
        """Size of each ended job's files, measured once: it changes no more."""
        new = self._ended().filter(files_bytes=None).order_by("job_id")
        jobs = new.values_list("job_id", flat=True).distinct()[:MEASURED]
        isolation = ItemIsolation(self.host, "measuring")

        def measure(job: int) -> None:
            if time.monotonic() < until:
                self._measure_one(job, logs, others, until)

        isolation.each(jobs, lambda job: f"files of job {job}", measure, now)

    def _measure_one(self, job: int, logs: Path, others: list[Path], until: float) -> None:
        name, rows = str(job), self._ended().filter(files_bytes=None, job_id=job)
        saved = sum(clearing.size_of(root, name, until) for root in others)
        size = clearing.size_of(logs, name, until)
        # Written once for all its attempts here.
        first = rows.order_by("number").values_list("pk", flat=True)[0]
        rows.exclude(pk=first).update(files_bytes=0, saved_bytes=0)
        rows.filter(pk=first).update(files_bytes=size, saved_bytes=saved)


# Files on a host that no longer exists are never cleared; their jobs' rows go after this.
PATIENCE = timedelta(days=90)


def expired_jobs(_keep: RetentionPeriods, now: datetime) -> Iterator[QuerySet[Model]]:
    """Ended jobs past their retention, with their attempts, dependencies and yield requests.

    A job stays while its files are there, a job that has not ended depends on it, or its array has
    a member that has not ended. Charges and usage are in rows of their own, which stay.
    """
    keep = timedelta(days=thresholds.current(RetentionPolicy).record_days)
    is_open = ~Q(state=JobState.FINISHED.value)
    files = Attempt.objects.filter(job=OuterRef("pk"), files_gone_at=None)
    dependents = JobDependency.objects.filter(on=OuterRef("pk")).exclude(
        job__state=JobState.FINISHED.value
    )
    members = Job.objects.filter(is_open, array=OuterRef("array"))
    ended = Job.objects.filter(state=JobState.FINISHED.value, ended_at__lt=now - keep)
    yield ended.filter(
        Q(ended_at__lt=now - keep - PATIENCE) | ~Exists(files),
        ~Exists(dependents),
        Q(array=None) | ~Exists(members),
    )


def forget(data: Path, host: str) -> int:
    """Remove inputs whose jobs have all ended; returns how many.

    An attempt that never ran may have left a file with it in its folder on this host.
    """
    still_open = Job.objects.exclude(state=JobState.FINISHED.value)
    needed = still_open.filter(Q(pk=OuterRef("pk")) | Q(array=OuterRef("pk")))
    over = list(JobInput.objects.exclude(Exists(needed)).values_list("pk", flat=True))
    for job in over:
        rows = Attempt.objects.filter(Q(job=job) | Q(job__array=job), host=host)
        for number, attempt in rows.values_list("job_id", "number"):
            (files.attempt_folder(data, number, attempt) / files.STDIN).unlink(missing_ok=True)
        JobInput.objects.filter(pk=job).delete()
    return len(over)


def _usable_bytes(folder: Path) -> int | None:
    try:
        return disk_space.read(folder).usable_bytes
    except OSError:
        return None
