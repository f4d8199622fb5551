"""The form to submit a job. It has the fields of REST and is checked by the same code."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django import forms
from django.contrib.auth.models import User
from django.forms import BoundField

from scheduler.facts.field_parsers import OURS
from scheduler.facts.field_types import Door, Group, JobField, Kind
from scheduler.facts.job_fields import fields_of
from scheduler.facts.plans import PlanPolicy
from scheduler.jobs.pages.lines import plain_gib
from scheduler.models import Job
from scheduler.submission.intake.actions import admit, checked_for
from scheduler.submission.intake.policy import UnableToSubmit

UNDECLARED = plain_gib(PlanPolicy().undeclared_bytes)
# Texts of the form alone: it shows defaults of the policy, and takes variables as lines.
NOTES = {
    "gpu_memory": f"Empty: as much as your earlier runs needed, or at least {UNDECLARED} free.",
    "time_limit": "Empty: no limit.",
    "env": "One NAME=value per line.",
    "tags": "One NAME=text per line.",
}


def job_field(field: JobField) -> forms.Field:
    """The form's field for a field of a job, without its check."""
    common: dict[str, Any] = {"label": field.label, "required": False}
    kind = field.type.kind
    attributes = {"autocomplete": "off", "spellcheck": "false"}
    if field.example:
        attributes["placeholder"] = field.example
    if kind in (Kind.INTEGER, Kind.NUMBER):
        attributes["inputmode"] = "numeric"
    if kind is Kind.FLAG:
        # The label says it all.
        return forms.BooleanField(**common, widget=forms.CheckboxInput(attributes))
    common["help_text"] = f"{field.help} {NOTES.get(field.name, '')}".strip()
    common["initial"] = shown_default(field)
    if kind is Kind.CHOICE:
        widget = forms.Select(attributes)
        return forms.ChoiceField(choices=field.type.choices, widget=widget, **common)
    if kind in (Kind.LINES, Kind.VARIABLES, Kind.TAGS):
        area = forms.Textarea({"rows": 3, **attributes})
        return forms.CharField(strip=False, widget=area, **common)
    return forms.CharField(widget=forms.TextInput(attributes), **common)


class NewJobForm(forms.Form):
    """All values stay text, so that a rejected form shows them unchanged."""

    def __init__(self, *args: Any, person: User, now: datetime, **kwargs: Any) -> None:
        """`person` submits. `now` is the base of relative times such as "in 2h"."""
        super().__init__(*args, **kwargs)
        self._now = now
        self._person = person
        self.fields.update({field.name: job_field(field) for field in fields_of(Door.FORM)})
        self.fields["command"].widget.attrs["required"] = True

    def clean(self) -> dict[str, Any]:
        """Parse the form as REST does. Each rejection becomes an error of its field."""
        raw = dict(self.cleaned_data)
        env, mistakes = variables(raw.get("env") or "")
        for mistake in mistakes:
            self.add_error("env", mistake)
        raw["env"] = env
        raw["priority"] = raw.get("priority") or "3"
        try:
            self.cleaned_data["new"] = checked_for(raw, self._person, self._now)
        except UnableToSubmit as error:
            self._add_errors(error)
        return self.cleaned_data

    def submitted(self) -> Job | None:
        """Submit the job. None: the form has errors."""
        if not self.is_valid():
            return None
        try:
            return admit(self.cleaned_data["new"], self._person, self._now)
        except UnableToSubmit as error:
            self._add_errors(error)
            return None

    def _add_errors(self, error: UnableToSubmit) -> None:
        for refusal in error.refusals:
            self.add_error(refusal.field if refusal.field in self.fields else None, refusal.text)

    @property
    def groups(self) -> list[tuple[str, list[BoundField], bool]]:
        """The less common fields: (title, fields, whether one was filled in or has a mistake)."""
        groups = [
            (group.value[0], [self[field.name] for field in fields_of(Door.FORM, group)])
            for group in Group
            if group is not Group.BASICS
        ]
        return [
            (title, fields, any(field.errors or field.value() for field in fields))
            for title, fields in groups
        ]


def variables(text: str) -> tuple[dict[str, str], list[str]]:
    """Variables from NAME=value lines, and the errors of the other lines."""
    values: dict[str, str] = {}
    mistakes = []
    for number, line in enumerate(text.splitlines(), start=1):
        name, equals, value = line.strip().removeprefix("export ").partition("=")
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        if not equals:
            mistakes.append(f"Line {number} is not NAME=value.")
        elif name.strip() in values:
            mistakes.append(f"{name.strip()} is set twice.")
        else:
            values[name.strip()] = value
    return values, mistakes


def filled_from(job: Job) -> dict[str, Any]:
    """The form's initial values to submit such a job again; variables' values stay secret."""
    initial = {
        field.name: _initial(field, getattr(job, field.column))
        for field in fields_of(Door.FORM)
        if field.column and field.is_repeated
    }
    return initial | {"env": _names(job)}


def shown_default(field: JobField) -> Any:
    """The value that the empty form shows."""
    return field.initial or _initial(field, field.default)


def _initial(field: JobField, value: Any) -> Any:
    """A less common field stays empty at its default, so that the page does not open its group."""
    is_default = value == field.default and field.group is not Group.BASICS
    return "" if is_default else field.type.to_text(value)


def _names(job: Job) -> str:
    """The variables as comments: the user enters their values again."""
    names = [name for name in job.env_names if not OURS.fullmatch(name)]
    return "".join(f"# {name}=   (enter it again)\n" for name in names)
