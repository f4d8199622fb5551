"""Ended jobs: their files go a little at a time, and their use is recorded to suggest memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

from django.contrib.auth.models import User
from django.db.models import Count, Exists, Max, Model, OuterRef, Q, QuerySet, Sum
from msgspec import Struct
from msgspec.structs import asdict

from monitor.facts.formats import fact_from
from monitor.facts.readings import GpuReading, Snapshot
from monitor.models import Gpu, ProcessMinute
from monitor.runtime.probes import disk_space
from monitor.runtime.rows.database import compiled_for_times
from monitor.runtime.rows.item_isolation import ItemIsolation
from monitor.thresholds import rows as thresholds
from monitor.usage.rows.rollups import RetentionPeriods
from scheduler.facts.jobs import JobState, NewJob, Outcome, Requirement
from scheduler.jobs.policy import RetainedFiles, RetentionPolicy, select_expired
from scheduler.models import Attempt, AttemptUse, Job, JobDependency, JobInput
from scheduler.queue.planner.sizing import (
    RUNS,
    GpuMinute,
    GpuUse,
    MemorySuggestion,
    SizingPolicy,
    fingerprint,
    suggest,
    summarise,
    together,
)
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


SuitableGpus = Callable[[Requirement], Sequence[GpuReading]]
MOST_AT_ONCE = 100
SAMPLES = (Outcome.SUCCEEDED.value,)


@compiled_for_times
def due(host: str, now: datetime) -> QuerySet[Attempt]:
    """Ended attempts on GPUs of this host whose use is not recorded yet, oldest first."""
    rows = Attempt.objects.filter(host=host, use_due_at__lte=now).select_related("job")
    return rows.order_by("use_due_at")[:MOST_AT_ONCE]


def record(attempt: Attempt) -> AttemptUse:
    """Store what an ended attempt used. The caller opens the transaction."""
    use, models = measured(attempt), _models(attempt.gpu_uuids)
    row, _ = AttemptUse.objects.update_or_create(
        attempt=attempt,
        defaults={
            "fingerprint": fingerprint(attempt.job.owner_id, attempt.job.argv),
            "gpu_model": models.pop() if len(models) == 1 else "",
            "is_sample": attempt.outcome in SAMPLES,
            **asdict(use),
        },
    )
    Attempt.objects.filter(pk=attempt.pk).update(use_due_at=None)
    return row


def measured(attempt: Attempt) -> GpuUse:
    """GPU use of the attempt so far, from the minutes of its processes."""
    begun, ended = attempt.started_at or attempt.placed_at, attempt.ended_at
    held_s = max(0.0, (ended - begun).total_seconds()) if ended else 0.0
    return summarise(minutes(attempt), held_s * len(attempt.gpu_uuids))


def minutes(attempt: Attempt, since: datetime | None = None) -> list[GpuMinute]:
    """The minutes of the attempt's processes on its GPUs, of all its time or since then."""
    begin = max(filter(None, (attempt.placed_at, since))).timestamp() - 60
    processes = Q(
        use__host=attempt.host,
        use__job_owner=attempt.job.owner.username,
        use__job_ref=str(attempt.job_id),
        use__gpu_id__in=attempt.gpu_uuids,
        use__last_seen_at__gte=attempt.placed_at,
    )
    if attempt.ended_at is not None:
        # Processes of a later attempt were first seen after this one had ended.
        processes &= Q(use__first_seen_at__lte=attempt.ended_at)
    rows = (
        ProcessMinute.objects.filter(processes, t__gt=begin)
        .order_by()
        .values("use__gpu_id", "t")
        .annotate(
            sm=Sum("sm_s"),
            longest=Max("held_s"),
            held=Sum("held_s"),
            measured=Sum("known_s"),
            peak=Sum("peak_memory_bytes"),
            unmeasured=Count("pk", filter=Q(peak_memory_bytes=None, held_s__gt=0)),
            energy=Sum("joules"),
            without_energy=Count("pk", filter=Q(joules=None, held_s__gt=0)),
        )
    )
    return [
        GpuMinute(
            gpu_uuid=row["use__gpu_id"],
            t=row["t"],
            sm_s=row["sm"],
            held_s=row["longest"],
            known_s=row["longest"] * row["measured"] / row["held"] if row["held"] else 0.0,
            memory_bytes=None if row["unmeasured"] else row["peak"],
            joules=None if row["without_energy"] else row["energy"],
        )
        for row in rows
    ]


def _models(gpu_uuids: Sequence[str]) -> set[str]:
    return set(Gpu.objects.filter(pk__in=gpu_uuids).exclude(name="").values_list("name", flat=True))


def suggested_memory(
    owner: User, argv: Sequence[str], gpus: Iterable[GpuReading]
) -> MemorySuggestion | None:
    """The GPU memory for such a job on any of these GPUs; None = too little is known."""
    policy = thresholds.current(SizingPolicy)
    if not policy.enabled:
        return None
    largest: dict[str, int | None] = {}
    for gpu in gpus:
        largest[gpu.name or ""] = gpu.memory_total_bytes
    kind = fingerprint(owner.pk, argv)
    return together(
        {
            model: suggest(_peaks(kind, model, RUNS), policy, total)
            for model, total in largest.items()
        }
    )


def has_samples(owner: User, argv: Sequence[str]) -> bool:
    """Whether any run of the same command is known, on any GPU."""
    return _samples(fingerprint(owner.pk, argv)).exists()


def _peaks(kind: str, model: str, most: int) -> list[int]:
    rows = _samples(kind).filter(gpu_model=model).exclude(gpu_model="").order_by("-attempt")
    return [peak for peak in rows.values_list("peak_memory_bytes", flat=True)[:most] if peak]


def _samples(kind: str) -> QuerySet[AttemptUse]:
    return AttemptUse.objects.filter(
        fingerprint=kind, is_sample=True, peak_memory_bytes__isnull=False
    )


def uses(attempts: Iterable[Attempt]) -> Mapping[int, GpuUse]:
    """The recorded use of these attempts, by their primary keys."""
    rows = AttemptUse.objects.filter(attempt__in=[attempt.pk for attempt in attempts])
    return {row.pk: fact(row) for row in rows}


def fact(row: AttemptUse) -> GpuUse:
    return fact_from(GpuUse, row)


class AttemptUses:
    """Part of the controller: records what ended attempts used of their GPUs."""

    name = "sizing"

    def __init__(self, host: str) -> None:
        self._host = host
        self._isolation = ItemIsolation(host, self.name)

    def judge(self, snapshot: Snapshot | None, now: datetime) -> list[int]:
        """Returns the jobs whose attempts were recorded."""
        recorded = self._isolation.each(
            due(self._host, now), lambda attempt: f"use of job {attempt.job_id}", record, now
        )
        return [attempt.job_id for attempt, _ in recorded]


def suggestion(new: NewJob, owner: User, suitable: SuitableGpus) -> MemorySuggestion | None:
    """The GPU memory that earlier runs of this command needed, whatever the job declares.

    suitable: the GPUs that could take a request. It is not called without earlier runs.
    """
    requirement = new.requirement
    if requirement.gpus == 0 or not has_samples(owner, new.executed):
        return None
    gpus = suitable(replace(requirement, memory_bytes=None))
    return suggested_memory(owner, new.executed, gpus)


def sized(new: NewJob, owner: User, suitable: SuitableGpus) -> NewJob:
    """The job with the memory that its earlier runs suggest, if it declares none."""
    requirement = new.requirement
    if requirement.memory_bytes is not None or requirement.exclusive:
        return new
    suggested = suggestion(new, owner, suitable)
    if suggested is None:
        return new
    learned = replace(requirement, memory_bytes=suggested.memory_bytes)
    return replace(new, requirement=learned, memory_is_learned=True)
