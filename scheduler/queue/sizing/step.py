"""Use of ended attempts: rows, the step that records it, and memory suggested for new jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from django.contrib.auth.models import User
from django.db.models import Count, Max, Q, QuerySet, Sum
from msgspec.structs import asdict

from monitor.facts.formats import fact_from
from monitor.facts.readings import GpuReading, Snapshot
from monitor.models import Gpu, ProcessMinute
from monitor.runtime.rows.database import compiled_for_times
from monitor.runtime.rows.item_isolation import ItemIsolation
from monitor.thresholds import rows as thresholds
from scheduler.facts.jobs import NewJob, Outcome, Requirement
from scheduler.models import Attempt, AttemptUse
from scheduler.queue.sizing.policy import (
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
