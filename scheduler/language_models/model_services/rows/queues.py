"""Rows of the queues that decide about evictions: jobs and prompts that wait."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from django.db.models import QuerySet

from scheduler.facts.blockers import Tier
from scheduler.facts.jobs import JobState, Outcome
from scheduler.facts.model_services import InstanceState
from scheduler.facts.prompts import PromptStatus
from scheduler.language_models.model_services.policy.eviction import Candidate
from scheduler.language_models.model_services.policy.lifecycle import DEMAND_FOR
from scheduler.models import Job, ModelService, Prompt

NEWEST = 50


def _scripts() -> QuerySet[Job]:
    waiting = Job.objects.filter(state=JobState.QUEUED.value, held="", model_service=None)
    return waiting.filter(gpus__gt=0)


def waiting_scripts() -> int:
    """How many jobs wait for a GPU."""
    return _scripts().count()


def waiting_prompts(now: datetime) -> int:
    """Queued prompts, and services with requests of the endpoint that no instance could take."""
    enabled = ModelService.objects.filter(enabled=True)
    requests = enabled.filter(wanted_at__gte=now - DEMAND_FOR).count()
    return requests + Prompt.objects.filter(status=PromptStatus.QUEUED.value).count()


def ready_gpus(candidates: Iterable[Candidate]) -> int:
    """GPUs with a loaded model and no request in flight."""
    idle = (
        candidate.instance
        for candidate in candidates
        if candidate.instance.state is InstanceState.READY and not candidate.instance.is_busy
    )
    return len({uuid for instance in idle for uuid in instance.gpu_uuids})


def in_need(most: int) -> dict[int, int]:
    """The first jobs that wait only for GPUs that others hold: their place in the queue, by id."""
    rows = _scripts().exclude(blockers=[]).order_by("-priority", "submitted_at", "id")
    places: dict[int, int] = {}
    for id_, blockers in rows.values_list("id", "blockers")[: most * 4]:
        if (
            all(blocker.get("tier") == Tier.CONTENTION for blocker in blockers)
            and len(places) < most
        ):
            places[id_] = len(places)
    return places


def average_script_s() -> float | None:
    """The mean run time of the newest jobs on GPUs; None = none has ended."""
    ended = Job.objects.filter(
        state=JobState.FINISHED.value,
        outcome=Outcome.SUCCEEDED.value,
        gpus__gt=0,
        model_service=None,
        started_at__isnull=False,
    )
    times = ended.order_by("-id").values_list("started_at", "ended_at")[:NEWEST]
    took = [(end - begin).total_seconds() for begin, end in times if begin and end]
    return max(0.0, sum(took)) / len(took) if took else None
