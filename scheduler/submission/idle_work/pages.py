"""The page of idle work: idle GPUs, templates with their chances, and why each was chosen."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import require_safe

from monitor.facts.gpu_states import GpuState
from monitor.facts.readings import GpuReading
from monitor.gpus.snapshot import rows as snapshots
from monitor.thresholds import rows as thresholds
from scheduler.facts.idle_work import SignalName
from scheduler.jobs.pages.lines import GpuLink, gpu_links
from scheduler.models import IdleChoice
from scheduler.queue.planner.idle_gpus import IdlePolicy, idle_by_use
from scheduler.submission.idle_work.api import bodies

MOST_CHOICES = 50
FACTORS = {
    SignalName.CURRICULUM_WEIGHT: "curriculum",
    SignalName.IMPROVEMENT_VELOCITY: "velocity",
    SignalName.DATA_AGE_HOURS: "data age",
    SignalName.QUALITY: "quality",
}


@dataclass(frozen=True, slots=True)
class IdleLine:
    """An idle GPU; `use`: what holds memory on it."""

    host: str
    gpu: GpuReading
    since: datetime
    use: str


@dataclass(frozen=True, slots=True)
class ChoiceLine:
    choice: IdleChoice
    gpu: GpuLink | None
    reasons: tuple[str, ...]


@require_safe
def idle_work(request: HttpRequest) -> HttpResponse:
    now = timezone.now()
    policy = thresholds.current(IdlePolicy)
    choices = list(IdleChoice.objects.order_by("-at", "-id")[:MOST_CHOICES])
    links = gpu_links(choice.gpu_uuid for choice in choices if choice.gpu_uuid)
    context: dict[str, Any] = {
        "idle": [
            IdleLine(snapshot.host.name, gpu, since, _use(gpu))
            for snapshot in snapshots.newest_all()
            for gpu, since in idle_by_use(snapshot.gpus, policy, now)
        ],
        "idle_seconds": policy.idle_seconds,
        "templates": [(body, _factors(body["factors"])) for body in bodies(now)],
        "choices": [
            ChoiceLine(choice, links.get(choice.gpu_uuid), tuple(map(_reason, choice.candidates)))
            for choice in choices
        ],
    }
    return render(request, "scheduler/idle_work.html", context)


def _use(gpu: GpuReading) -> str:
    if gpu.state is GpuState.IDLE:
        return "free"
    if gpu.state is GpuState.LLM_READY:
        return "a model holds memory"
    if gpu.state is GpuState.SCRIPT_BUSY:
        return "a job holds memory"
    return "other processes hold memory" if gpu.state is GpuState.EXTERNAL else "not available"


def _factors(factors: dict[str, float]) -> str:
    """The factors in words, such as "velocity × 1.8"; those of 1 are left out."""
    words = [
        f"{FACTORS[SignalName(name)]} × {value:.3g}"
        for name, value in factors.items()
        if abs(value - 1) >= 0.005
    ]
    return ", ".join(words) or "all factors × 1"


def _reason(candidate: dict[str, Any]) -> str:
    """Why a candidate had its chance."""
    share = 100 * candidate["share"]
    return (
        f"{candidate['name']} {share:.3g} %: weight {candidate['base']:g},"
        f" {_factors(candidate['factors'])}"
    )
