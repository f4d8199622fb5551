"""Forecast of the job in the form, and the same submission by command line and by REST."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.conf import settings
from django.contrib.auth.models import User

from scheduler.dispatch.steps import advice as job_advice
from scheduler.dispatch.steps import preview
from scheduler.facts.field_types import Door, JobField, Kind
from scheduler.facts.job_fields import fields_of
from scheduler.facts.units import size
from scheduler.jobs.pages.forms import NewJobForm, shown_default, variables
from scheduler.queue.blockers.policy import stored_blockers
from scheduler.queue.sizing import policy as sizing
from scheduler.submission.intake import actions as intake_actions

# The values of variables may be secrets: a shell would keep them in its history.
LEFT_OUT = "…"


@dataclass(frozen=True, slots=True)
class Equivalents:
    """The form's submission as lines for a shell. Values of variables are left out."""

    command: str
    curl: str
    has_variables: bool


def expected(form: NewJobForm, person: User, now: datetime) -> dict[str, Any]:
    """For a template: when the job of a valid form would start, or why it would be rejected."""
    new = intake_actions.fitted(form.cleaned_data["new"], person)
    answer = preview.what_if(new, person.username, now)
    context: dict[str, Any] = {"answer": answer, "viewer": person.username}
    context |= stored_blockers.explained(map(stored_blockers.body, answer.blockers))
    context["limits"] = intake_actions.refusals(new, person)
    if not (answer.starts_now or context["limits"]):
        zone = settings.TIME_ZONE
        changes = job_advice.of_draft(new, person, now)
        context["advice"] = [job_advice.sentence(each, now, zone) for each in changes]
    if suggestion := intake_actions.memory_suggestion(new, person):
        context["suggestion"] = sizing.sentence(suggestion)
        context["memory"] = size(suggestion.memory_bytes)
    return context


def equivalents(values: Mapping[str, Any], address: str) -> Equivalents:
    """`values`: of a valid form, by field. `address`: of this gpucoord, with a slash at its end."""
    given = list(_given(values))
    words = [word for field, value in given for word in _option(field, value)]
    command = _plain(values["command"])
    body = {"command": command} | {field.name: _json(field, value) for field, value in given}
    data = shlex.quote(json.dumps(body, ensure_ascii=False))
    return Equivalents(
        command=shlex.join(["gpucoord", "submit", "--detach", *words, "--", command]),
        curl=f'curl -H "Authorization: Bearer $GPUCOORD_TOKEN" -H "Content-Type: application/json"'
        f" -d {data} {shlex.quote(f'{address}api/jobs/')}",
        has_variables=any(field.type.kind is Kind.VARIABLES for field, _ in given),
    )


def _given(values: Mapping[str, Any]) -> Iterator[tuple[JobField, Any]]:
    """The fields that say more than their defaults; the command comes last on a command line."""
    for field in fields_of(Door.FORM):
        value = values.get(field.name)
        text = _plain(value) if isinstance(value, str) else value
        if field.name != "command" and text and text != shown_default(field):
            yield field, text


def _option(field: JobField, value: Any) -> list[str]:
    kind = field.type.kind
    if kind is Kind.FLAG:
        return [field.option]
    if kind is Kind.VARIABLES:
        # Without a value, the option takes that of the shell.
        return [word for name in _names(value) for word in (field.option, name)]
    if kind is Kind.TAGS:
        return [word for line in _lines(value) for word in (field.option, line)]
    if kind is Kind.JOBS:
        return [field.option, ",".join(map(str, _numbers(value)))]
    return [f"{field.option}={value}"] if value.startswith("-") else [field.option, value]


def _json(field: JobField, value: Any) -> Any:
    kind = field.type.kind
    if kind is Kind.VARIABLES:
        return dict.fromkeys(_names(value), LEFT_OUT)
    if kind is Kind.TAGS:
        return _lines(value)
    if kind is Kind.JOBS:
        return _numbers(value)
    if field.type.json is int:
        return int(value)
    return float(value) if kind is Kind.NUMBER else value


def _plain(text: str) -> str:
    """Browsers send lines with carriage returns."""
    return text.replace("\r\n", "\n").strip()


def _names(value: Any) -> list[str]:
    """`value`: the mapping that the form makes of its lines, or the lines."""
    return list(value if isinstance(value, Mapping) else variables(value)[0])


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]


def _numbers(text: str) -> list[int]:
    return [int(word) for word in text.replace(",", " ").split()]
