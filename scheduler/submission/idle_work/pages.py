"""The page and REST of idle work: idle GPUs, templates with their chances, and the choices."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Any

from django.contrib.auth.models import User
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import require_safe
from ninja import Field, Router, Schema
from ninja.errors import HttpError
from ninja.responses import Status

from monitor.api import InvalidInput, PlainText, RequestBody, body_of
from monitor.facts.formats import duration
from monitor.facts.gpu_states import GpuState
from monitor.facts.readings import GpuReading
from monitor.gpus.snapshot import rows as snapshots
from monitor.thresholds import rows as thresholds
from scheduler.facts.batches import Candidate, SignalName, TemplateFact
from scheduler.jobs.pages.lines import GpuLink, gpu_links
from scheduler.models import IdleChoice, IdleTemplate
from scheduler.queue.planner.idle_gpus import IdlePolicy, idle_by_use
from scheduler.submission.idle_work import rows, step
from scheduler.submission.idle_work.policy import candidates
from scheduler.submission.intake.policy import UnableToSubmit

# REST: templates of idle work, and the signals that weight them.


router = Router()
NOT_OPERATOR = "Only operators add idle templates."


class SignalBody(Schema):
    value: float
    at: datetime = Field(description="When it was posted.")


class IdleTemplateBody(Schema):
    """Background work for idle GPUs."""

    name: str
    enabled: bool
    account: str = Field(description="The user who owns and is charged for the jobs.")
    weight: float
    most_running: int
    most_per_gpu: int
    most_per_day: int | None
    running: int
    started_today: int
    signals: dict[str, SignalBody]
    factors: dict[str, float] = Field(description="Of the weight now; 1 = neutral.")
    share: float = Field(description="Its chance among all enabled templates now, 0 to 1.")
    problem: str | None = Field(description="Why its last job could not be submitted.")


class IdleTemplates(Schema):
    templates: list[IdleTemplateBody]


class NewIdleTemplateBody(RequestBody):
    """A new template."""

    name: PlainText = Field(max_length=64, pattern="^[a-z][a-z0-9_-]*$")
    request: dict[str, Any] = Field(description="Fields of each job, as in `POST /api/jobs/`.")
    account: PlainText = Field(
        "", max_length=150, description="The user who is charged. Empty = the caller."
    )
    enabled: bool = True
    weight: float = Field(1.0, ge=0, le=1_000_000)
    most_running: int = Field(1, ge=0, le=1000)
    most_per_gpu: int = Field(1, ge=0, le=1000)
    most_per_day: int | None = Field(None, ge=0, le=1_000_000)


class SignalsBody(RequestBody):
    """Any of the four signals; the others stay as they are."""

    curriculum_weight: float | None = Field(None, ge=0, le=1000, description="1 = neutral.")
    improvement_velocity: float | None = Field(
        None, ge=0, le=1e12, description="The fastest template gets the highest factor."
    )
    data_age_hours: float | None = Field(None, ge=0, le=1e6, description="Old data gets a boost.")
    quality: float | None = Field(None, ge=0, le=1, description="Of its results.")


@router.get("", response=IdleTemplates, summary="List idle templates", url_name="idle-templates")
def list_templates(request: HttpRequest) -> dict[str, Any]:
    """With their limits, and the factors of their weight now."""
    return {"templates": bodies(timezone.now())}


@router.post("", response={201: IdleTemplateBody}, summary="Add an idle template")
def add(request: HttpRequest, new: NewIdleTemplateBody) -> Status[dict[str, Any]]:
    """Operators only. Only administrators may charge another account than their own."""
    by = _person(request)
    if not by.is_staff:
        raise HttpError(403, NOT_OPERATOR)
    values = new.model_dump()
    name = values.pop("account") or by.get_username()
    account = User.objects.filter(username=name).first()
    if account is None:
        raise InvalidInput([("account", f"There is no user {name}.")])
    now = timezone.now()
    try:
        row = step.create(values, account, by, now)
    except UnableToSubmit as error:
        raise InvalidInput([(each.field, each.text) for each in error.refusals]) from None
    return Status(201, next(body for body in bodies(now) if body["name"] == row.name))


@router.post("{name}/signals/", response=IdleTemplateBody, summary="Post signals")
def signals(request: HttpRequest, name: str, posted: SignalsBody) -> dict[str, Any]:
    """For operators and the account of the template. Values decay until they are posted again."""
    person = _person(request)
    row = IdleTemplate.objects.select_related("account").filter(name=name).first()
    if row is None:
        raise Http404(f"There is no idle template {name[:100]!r}.")
    if row.account_id != person.pk and not person.is_staff:
        raise HttpError(403, f"Only {row.account.username} and operators may post signals.")
    values = {key: value for key, value in posted.model_dump().items() if value is not None}
    if not values:
        known = ", ".join(each.value for each in SignalName)
        raise InvalidInput([("signals", f"Post at least one of {known}.")])
    now = timezone.now()
    rows.post_signals(row, values, now)
    return next(body for body in bodies(now) if body["name"] == row.name)


def bodies(now: datetime) -> list[dict[str, Any]]:
    """All templates by name. A disabled one has no chance."""
    templates = list(IdleTemplate.objects.select_related("account").order_by("name"))
    facts = {fact.name: fact for fact in rows.facts(templates, now)}
    enabled = [facts[row.name] for row in templates if row.enabled]
    chances = {candidate.name: candidate for candidate in candidates(enabled, now)}
    return [_body(row, facts[row.name], chances.get(row.name)) for row in templates]


def _body(row: IdleTemplate, fact: TemplateFact, chance: Candidate | None) -> dict[str, Any]:
    return body_of(
        IdleTemplateBody,
        row,
        account=row.account.username,
        running=fact.running,
        started_today=fact.started_today,
        signals={
            name.value: {"value": signal.value, "at": signal.at}
            for name, signal in fact.signals.items()
        },
        factors={name.value: value for name, value in chance.factors.items()} if chance else {},
        share=chance.share if chance else 0.0,
        problem=row.problem or None,
    )


def _person(request: HttpRequest) -> User:
    person: User = request.auth  # type: ignore[attr-defined]
    return person


MOST_CHOICES, MOST_REASONS = 50, 2
# A factor nearer to 1 explains no choice.
LEAST_EFFECT = 0.05
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
    """chances: of all candidates, the likeliest first. weights: how each chance came about."""

    choice: IdleChoice
    gpu: GpuLink | None
    chances: str
    weights: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TemplateLine:
    """reason: why its chance is more or less than by its own weight, in words."""

    body: dict[str, Any]
    reason: str
    weights: str


@require_safe
def idle_work(request: HttpRequest) -> HttpResponse:
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
