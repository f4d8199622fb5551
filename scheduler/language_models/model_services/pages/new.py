"""The form to add a model from a template, with a dry run."""

from __future__ import annotations

import shlex
from typing import Any, cast

from django import forms
from django.contrib import messages
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.views.decorators.http import require_http_methods

from monitor.facts.input_rules import character_problem
from scheduler.language_models.model_services import actions
from scheduler.language_models.model_services.policy import services as policy
from scheduler.language_models.model_services.steps import dry_run
from scheduler.models import ModelService
from scheduler.runner.accounts import MissingAccount

OWN = "own"
LONGEST_SOURCE = 1000
LONGEST_COMMAND = 20_000


class NewModelForm(forms.Form):
    """A service from a template, or with a command of its own. The admin has all other fields."""

    template = forms.ChoiceField(
        label="Server",
        choices=[*((name, name) for name in policy.TEMPLATES), (OWN, "own command")],
        widget=forms.RadioSelect,
        initial="vLLM",
    )
    name = forms.CharField(
        max_length=100,
        label="Name",
        help_text="In requests of clients, such as `qwen2.5:14b`. It cannot be changed later.",
    )
    source = forms.CharField(
        required=False,
        max_length=LONGEST_SOURCE,
        label="File or Hugging Face name",
        help_text="Such as `/models/qwen.gguf` for llama.cpp or `Qwen/Qwen2.5-14B` for vLLM.",
    )
    memory = forms.CharField(
        required=False,
        max_length=40,
        label="GPU memory",
        help_text="Such as `20GiB`. Empty: a whole GPU until the memory is measured.",
    )
    command = forms.CharField(
        required=False,
        max_length=LONGEST_COMMAND,
        label="Own command",
        widget=forms.Textarea({"rows": 2, "spellcheck": "false"}),
        help_text="Program and arguments; no shell runs it. `{port}` is needed, `{model}`, `{gpu}` "
        "and `{gpu_memory_fraction}` are filled in.",
    )

    def __init__(self, *args: Any, person: User, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._person = person

    def clean_source(self) -> str:
        return _printable(self.cleaned_data["source"])

    def clean_memory(self) -> int | None:
        try:
            return policy.memory_mib(self.cleaned_data["memory"])
        except (ValueError, OverflowError) as error:
            raise forms.ValidationError(str(error)) from None

    def clean_command(self) -> str:
        return _printable(self.cleaned_data["command"])

    def clean(self) -> dict[str, Any]:
        values = super().clean() or {}
        template = policy.TEMPLATES.get(values.get("template", ""))
        if template and template.needs_source and not values.get("source"):
            self.add_error("source", "Write the file or the name of the model.")
        if self.errors:
            return values
        try:
            columns = self.columns()
        except ValueError as error:
            self.add_error("command", str(error))
            return values
        fields = {"argv": "command", "memory_mib": "memory"}
        for column, text in actions.problems(ModelService(), columns, self._person):
            field = fields.get(column, column)
            self.add_error(field if field in self.fields else None, text)
        return values

    def columns(self) -> dict[str, Any]:
        """The columns of the service. Raises ValueError for a command that is none."""
        values = self.cleaned_data
        chosen = values["template"]
        if chosen == OWN:
            return self._row(list(policy.parse_argv(values["command"])), "/health")
        argv = policy.from_template(chosen, values["source"])
        return self._row(argv, policy.TEMPLATES[chosen].health_path)

    def model_source(self) -> str:
        """The model's file or name; "" if the command has none."""
        template = policy.TEMPLATES.get(self.cleaned_data["template"])
        return self.cleaned_data["source"] if template and template.needs_source else ""

    def _row(self, argv: list[str], health_path: str) -> dict[str, Any]:
        name, size = self.cleaned_data["name"], self.cleaned_data["memory"]
        return {"name": name, "argv": argv, "memory_mib": size, "health_path": health_path}


@require_http_methods(["GET", "HEAD", "POST"])
def add(request: HttpRequest) -> HttpResponse:
    """Operators only. `check` makes the dry run alone; `add` stores the service."""
    person = cast("User", request.user)
    if not person.is_staff:
        raise PermissionDenied
    form = NewModelForm(request.POST if request.method == "POST" else None, person=person)
    context: dict[str, Any] = {"form": form}
    if request.method == "POST" and form.is_valid():
        if "add" in request.POST:
            if row := _stored(form, person):
                messages.success(request, f"{row.name} is added. A request starts it.")
                return redirect("model", name=row.name)
        else:
            context |= _checked(form)
    return render(request, "scheduler/model_add.html", context, status=422 if form.errors else 200)


def _stored(form: NewModelForm, person: User) -> ModelService | None:
    """None: another request was first; the form names the problem."""
    try:
        return actions.create(form.columns(), person, timezone.now())
    except actions.InvalidService as error:
        for _, text in error.errors:
            form.add_error(None, text)
        return None


def _checked(form: NewModelForm) -> dict[str, Any]:
    try:
        result = dry_run.dry_run(form.columns(), form.model_source())
    except MissingAccount as error:
        return {"findings": [dry_run.Finding(str(error), False)]}
    is_ready = all(finding.is_ok is not False for finding in result.findings)
    argv = shlex.join(result.argv)
    return {"findings": result.findings, "argv": argv, "is_ready": is_ready}


def _printable(text: str) -> str:
    if problem := character_problem(text):
        raise forms.ValidationError(problem)
    return text
