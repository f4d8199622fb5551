"""Check the templates of idle work, and make their jobs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from django.contrib.auth.models import User
from django.core.exceptions import ValidationError

from monitor.journal.rows import audit
from scheduler.facts.jobs import NewJob, Refusal
from scheduler.models import IdleTemplate
from scheduler.submission.intake import actions as intake
from scheduler.submission.intake.policy import UnableToSubmit
from scheduler.submission.intake.steps import checked

# Fields of a job that a template sets itself, or that make no sense for it.
NOT_FOR_TEMPLATES = frozenset(
    {
        "priority", "preemptible", "array", "array_limit", "begin", "after", "after_success",
        "stdin_base64", "blocking", "on_gpu", "environment", "interactive",
    }
)  # fmt: skip
LOWEST_PRIORITY = 1
OTHER_ACCOUNT = "Only administrators may charge another account than their own."


def job_of(row: IdleTemplate, gpu_uuid: str, now: datetime) -> NewJob:
    """The job of a template on this GPU. Raises UnableToSubmit."""
    new = _read(row.request, now)
    new = replace(
        new,
        name=f"idle {row.name}",
        priority=LOWEST_PRIORITY,
        requirement=replace(
            new.requirement, gpu_uuid=gpu_uuid if new.requirement.gpus == 1 else ""
        ),
        yield_options=replace(new.yield_options, preemptible=True),
    )
    (fitted,) = intake.fitted_all([new], row.account)
    if refusals := intake.refusals(fitted, row.account):
        raise UnableToSubmit(refusals)
    return fitted


def _read(request: Any, now: datetime) -> NewJob:
    if not isinstance(request, dict):
        raise UnableToSubmit([Refusal(field="request", text="Write an object with fields.")])
    wrong = [
        Refusal(field=f"request.{name}", text="A template cannot have this field.")
        for name in sorted(NOT_FOR_TEMPLATES & request.keys())
    ]
    if wrong:
        raise UnableToSubmit(wrong)
    return checked(request, now)


def create(values: Mapping[str, Any], account: User, by: User, now: datetime) -> IdleTemplate:
    """Store a new template. Raises UnableToSubmit with all mistakes."""
    row = IdleTemplate(**values, account=account, created_by=by.get_username())
    if mistakes := problems(row, by, now):
        raise UnableToSubmit(mistakes)
    row.save()
    note(row, by, now, "IDLE_TEMPLATE_ADDED", "added")
    return row


def note(row: IdleTemplate, by: User, now: datetime, action: str, word: str) -> None:
    name = by.get_username()
    text = f"{name} {word} the idle template {row.name}"
    after = {"request": row.request, "account": row.account.username, "enabled": row.enabled}
    audit.note(action, text, by=name, now=now, subject=f"idle template {row.name}", after=after)


def problems(row: IdleTemplate, by: User, now: datetime) -> list[Refusal]:
    """Why this user may not store this template."""
    refusals: list[Refusal] = []
    try:
        row.full_clean(exclude=["created_at"])
    except ValidationError as error:
        refusals += [
            Refusal(field=field, text=text)
            for field, texts in error.message_dict.items()
            for text in texts
        ]
    if row.account_id != by.pk and not by.is_superuser:
        refusals.append(Refusal(field="account", text=OTHER_ACCOUNT))
    try:
        _read(row.request, now)
    except UnableToSubmit as error:
        refusals += error.refusals
    return refusals
