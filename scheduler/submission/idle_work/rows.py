"""Rows of idle work: templates with their signals and open jobs, choices, and their jobs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from django.db import transaction
from django.db.models import Count, Exists, OuterRef, QuerySet
from django.utils import timezone

from monitor.facts.formats import fact_from
from monitor.journal.rows import events
from monitor.runtime.rows.database import compiled_once
from scheduler.facts.batches import Candidate, Choice, Signal, SignalName, TemplateFact
from scheduler.facts.jobs import JobState, NewJob
from scheduler.jobs.lifecycle.rows import changes
from scheduler.jobs.lifecycle.rows import changes as job_queue
from scheduler.models import Attempt, IdleChoice, IdleTemplate, Job

BY = "gpucoord"
CHOICES_KEPT = 2000


@compiled_once
def enabled() -> QuerySet[IdleTemplate]:
    """Those of active users."""
    rows = IdleTemplate.objects.filter(enabled=True, account__is_active=True)
    return rows.select_related("account")


def facts(rows: Sequence[IdleTemplate], now: datetime) -> list[TemplateFact]:
    """The templates with the numbers that their limits apply to."""
    names = [row.name for row in rows]
    jobs = open_jobs().filter(idle_template__in=names)
    running: Counter[str] = Counter()
    on_gpu: dict[str, Counter[str]] = {name: Counter() for name in names}
    for name, uuid in jobs.values_list("idle_template", "gpu_uuid"):
        running[name] += 1
        on_gpu[name][uuid] += 1
    today = Job.objects.filter(idle_template__in=names, submitted_at__gte=_midnight(now))
    started = dict(today.order_by().values_list("idle_template").annotate(Count("id")))
    return [
        fact_from(
            TemplateFact,
            row,
            gpus=gpus_of(row.request),
            signals=signals_of(row),
            running=running[row.name],
            started_today=started.get(row.name, 0),
            on_gpu=on_gpu[row.name],
        )
        for row in rows
    ]


def gpus_of(request: Mapping[str, Any]) -> int:
    gpus = request.get("gpus", 1)
    return gpus if isinstance(gpus, int) else 1


def signals_of(row: IdleTemplate) -> dict[SignalName, Signal]:
    """The readable signals of a template."""
    posted = row.signals if isinstance(row.signals, dict) else {}
    signals = {}
    for name in SignalName:
        try:
            entry = posted[name.value]
            signals[name] = Signal(float(entry["value"]), datetime.fromisoformat(entry["at"]))
        except (KeyError, TypeError, ValueError):
            continue
    return signals


def post_signals(row: IdleTemplate, values: Mapping[str, float], now: datetime) -> None:
    """Store these values; the other signals stay."""
    with transaction.atomic():
        locked = IdleTemplate.objects.select_for_update().get(pk=row.pk)
        news = {name: {"value": value, "at": now.isoformat()} for name, value in values.items()}
        locked.signals = {**locked.signals, **news}
        locked.save(update_fields=["signals"])
    row.signals = locked.signals


def _midnight(now: datetime) -> datetime:
    local = now.astimezone(ZoneInfo(timezone.get_default_timezone_name()))
    return local.replace(hour=0, minute=0, second=0, microsecond=0)


def open_jobs() -> QuerySet[Job]:
    """Jobs of templates that have not ended."""
    return Job.objects.exclude(state=JobState.FINISHED.value).exclude(idle_template="")


def next_seed() -> int:
    """The number of the next choice, from which the choice follows."""
    newest = IdleChoice.objects.order_by("-id").values_list("id", flat=True).first()
    return (newest or 0) + 1


def start(
    choice: Choice,
    row: IdleTemplate,
    new: NewJob,
    host: str,
    gpu_uuid: str,
    idle_s: float,
    now: datetime,
) -> Job:
    """Queue the job of a choice, and store why. The caller opens the transaction."""
    job = job_queue.add_within(new, row.account, now, idle_template=row.name)
    newest = IdleChoice.objects.create(
        at=now,
        host=host,
        gpu_uuid=gpu_uuid,
        idle_s=idle_s,
        template=row.name,
        job=job.pk,
        seed=choice.seed,
        candidates=candidates_row(choice.candidates),
    )
    IdleChoice.objects.filter(pk__lte=newest.pk - CHOICES_KEPT).delete()
    if row.problem:
        IdleTemplate.objects.filter(pk=row.pk).update(problem="")
    text = f"Idle work {row.name} starts as job {job.pk} of {row.account.username}"
    owner = row.account.username
    events.add("IDLE_WORK_STARTED", text, now=now, host=host, gpu_uuid=gpu_uuid, owner=owner)
    return job


def candidates_row(candidates: Iterable[Candidate]) -> list[dict[str, Any]]:
    """The chances of a choice, as JSON."""
    return [
        {
            "name": candidate.name,
            "base": candidate.base,
            "factors": {name.value: round(value, 4) for name, value in candidate.factors.items()},
            "weight": round(candidate.weight, 6),
            "share": round(candidate.share, 6),
        }
        for candidate in candidates
    ]


def note_problem(row: IdleTemplate, problem: str) -> None:
    if row.problem != problem:
        IdleTemplate.objects.filter(pk=row.pk).update(problem=problem[:1000])


def cancel_waiting(before: datetime, now: datetime) -> int:
    """Cancel jobs that have found no GPU since this time: it is no longer idle.

    Those that have run before may have saved their work, so they wait for their GPU.
    """
    waiting = open_jobs().filter(state=JobState.QUEUED.value, submitted_at__lt=before)
    ran = Attempt.objects.filter(job=OuterRef("pk"), started_at__isnull=False)
    numbers = list(waiting.exclude(Exists(ran)).values_list("pk", flat=True))
    return changes.cancel(Job.objects.filter(pk__in=numbers), BY, now) if numbers else 0
