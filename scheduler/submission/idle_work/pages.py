"""The page of idle work: idle GPUs, templates with their chances, and why each was chosen."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import datetime
from itertools import islice
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import require_safe
from msgspec import Struct

from monitor.facts.formats import duration
from monitor.facts.gpus import GpuState
from monitor.facts.readings import GpuReading
from monitor.gpus.rows import snapshot as snapshots
from monitor.thresholds import rows as thresholds
from scheduler.facts.scripts import SignalName
from scheduler.jobs.pages.serialise import GpuLink, gpu_links
from scheduler.models import IdleChoice
from scheduler.submission.idle_work.policy import IdlePolicy, idle_by_use

MOST_CHOICES, MOST_REASONS = 50, 2
# A factor nearer to 1 explains no choice.
LEAST_EFFECT = 0.05
FACTORS = {
    SignalName.CURRICULUM_WEIGHT: "curriculum",
    SignalName.IMPROVEMENT_VELOCITY: "velocity",
    SignalName.DATA_AGE_HOURS: "data age",
    SignalName.QUALITY: "quality",
}


class IdleLine(Struct, frozen=True):
    """An idle GPU; `use`: what holds memory on it."""

    host: str
    gpu: GpuReading
    since: datetime
    use: str


class ChoiceLine(Struct, frozen=True):
    """chances: of all candidates, the likeliest first. weights: how each chance came about."""

    choice: IdleChoice
    gpu: GpuLink | None
    chances: str
    weights: tuple[str, ...]


class TemplateLine(Struct, frozen=True):
    """reason: why its chance is more or less than by its own weight, in words."""

    body: dict[str, Any]
    reason: str
    weights: str


@require_safe
def idle_work(request: HttpRequest) -> HttpResponse:
    # REST is loaded after the first live frames.
    from scheduler.submission.idle_work.api import bodies

    now = timezone.now()
    policy = thresholds.current(IdlePolicy)
    choices = list(IdleChoice.objects.order_by("-at", "-id")[:MOST_CHOICES])
    links = gpu_links(choice.gpu_uuid for choice in choices if choice.gpu_uuid)
    lines = template_lines(bodies(now), now)
    able = [line for line in lines if line.body["enabled"] and line.body["share"]]
    context: dict[str, Any] = {
        "idle": [
            IdleLine(snapshot.host.name, gpu, since, _use(gpu))
            for snapshot in snapshots.newest_all()
            for gpu, since in idle_by_use(snapshot.gpus, policy, now)
        ],
        "idle_seconds": policy.idle_seconds,
        "templates": lines,
        "next": max(able, key=lambda line: line.body["share"], default=None),
        "choices": [
            ChoiceLine(
                choice,
                links.get(choice.gpu_uuid),
                _chances(choice.candidates),
                tuple(map(_weights, choice.candidates)),
            )
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


def template_lines(templates: list[dict[str, Any]], now: datetime) -> list[TemplateLine]:
    fastest = max((_velocity(body) for body in templates), default=1.0)
    return [
        TemplateLine(
            body,
            " and ".join(islice(_words(body, fastest, now), MOST_REASONS)),
            f"weight {body['weight']:g}, {_factors(body['factors'])}",
        )
        for body in templates
    ]


def _velocity(body: dict[str, Any]) -> float:
    return float(body["factors"].get(SignalName.IMPROVEMENT_VELOCITY.value, 1.0))


def _words(body: dict[str, Any], fastest: float, now: datetime) -> Iterator[str]:
    """A clause for each posted signal that changes its chance, the strongest first."""
    factors = body["factors"]
    for name in sorted(factors, key=lambda each: -abs(math.log(max(factors[each], 1e-9)))):
        factor = factors[name]
        if abs(factor - 1) < LEAST_EFFECT:
            continue
        if name == SignalName.CURRICULUM_WEIGHT:
            yield f"its curriculum weight is {'high' if factor > 1 else 'low'}"
        elif name == SignalName.IMPROVEMENT_VELOCITY:
            yield "it improves fastest" if factor == fastest else "it improves"
        elif name == SignalName.QUALITY:
            yield f"the quality of its results is {'high' if factor > 1 else 'low'}"
        else:
            posted = body["signals"][name]
            age_s = 3600 * posted["value"] + (now - posted["at"]).total_seconds()
            yield f"its data is {duration(age_s)} old"


def _chances(candidates: list[dict[str, Any]]) -> str:
    ordered = sorted(candidates, key=lambda each: -each["share"])
    return ", ".join(f"{each['name']} {100 * each['share']:.0f} %" for each in ordered)


def _weights(candidate: dict[str, Any]) -> str:
    """How a candidate had its chance."""
    share = 100 * candidate["share"]
    return (
        f"{candidate['name']} {share:.3g} %: weight {candidate['base']:g},"
        f" {_factors(candidate['factors'])}"
    )
