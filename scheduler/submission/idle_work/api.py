"""REST: templates of idle work, and the signals that weight them."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.contrib.auth.models import User
from django.http import Http404, HttpRequest
from django.utils import timezone
from ninja import Field, Router, Schema
from ninja.errors import HttpError
from ninja.responses import Status

from monitor.api import PlainText, RequestBody, body_of, caller
from monitor.pages.requests import InvalidInput
from scheduler.facts.scripts import Candidate, SignalName, TemplateFact
from scheduler.models import IdleTemplate
from scheduler.submission.idle_work import step
from scheduler.submission.idle_work.policy import candidates
from scheduler.submission.intake.policy import UnableToSubmit

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
    by = caller(request)
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
    person = caller(request)
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
    step.post_signals(row, values, now)
    return next(body for body in bodies(now) if body["name"] == row.name)


def bodies(now: datetime) -> list[dict[str, Any]]:
    """All templates by name. A disabled one has no chance."""
    templates = list(IdleTemplate.objects.select_related("account").order_by("name"))
    facts = {fact.name: fact for fact in step.facts(templates, now)}
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
