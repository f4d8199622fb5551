"""Pages of the scripts: the list, and the form of one, generated from its schema."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from django import forms
from django.conf import settings
from django.contrib.auth.models import User
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.views.decorators.http import require_http_methods, require_safe
from msgspec import Struct

from scheduler.execution.steps.specs import account_of_jobs
from scheduler.facts.field_types import LONGEST_NAME
from scheduler.facts.scripts import Script
from scheduler.runner.accounts import MissingAccount
from scheduler.runner.commands import Listing, list_folders
from scheduler.submission.intake import actions as intake
from scheduler.submission.intake.policy import UnableToSubmit
from scheduler.submission.scripts import rows

PREFIX = "script_args."
LONGEST_VALUE, LONGEST_PATH = 20_000, 4096


class ScriptLine(Struct, frozen=True):
    """A script in the list. command: its words as a user would type them.

    is_worker: they are those of a worker, because the script runs in batches only.
    """

    script: Script
    command: str

    @property
    def is_worker(self) -> bool:
        return not self.script.argv


@require_safe
def scripts(request: HttpRequest) -> HttpResponse:
    lines = [ScriptLine(script, _command(script)) for script in rows.enabled()]
    return render(request, "scheduler/scripts.html", {"lines": lines})


def _command(script: Script) -> str:
    template = script.argv or script.worker
    words = [word if isinstance(word, str) else f"[{' '.join(word)}]" for word in template]
    return " ".join(shlex.quote(w) if " " in w and w[0] != "[" else w for w in words)


@require_http_methods(["GET", "HEAD", "POST"])
def script(request: HttpRequest, name: str) -> HttpResponse:
    """The form of a script's arguments. A rejected form keeps its values."""
    try:
        chosen = rows.named(name)
    except ValueError as error:
        raise Http404(str(error)) from None
    form = ScriptForm(chosen, request.POST if request.method == "POST" else None)
    if request.method == "POST" and (number := form.submitted_by(cast(User, request.user))):
        return redirect("job", number)
    context = {"script": chosen, "form": form, "command": _command(chosen)}
    return render(request, "scheduler/script.html", context, status=422 if form.errors else 200)


@require_safe
def folders(request: HttpRequest) -> HttpResponse:
    """The folders that the user's account may read here, for the fields of paths.

    path, or the value of the named field; without either, the home folder.
    """
    query = request.GET
    path = query.get("path") or query.get(query.get("field", ""), "")
    context: dict[str, Any] = {"host": settings.CONFIG.node}
    try:
        account = account_of_jobs(cast(User, request.user), settings.CONFIG.run_as)
    except MissingAccount as error:
        context["listing"] = Listing("/", problem=str(error))
        return render(request, "scheduler/_folders.html", context)
    if not path.startswith("/") or "\0" in path or len(path) > LONGEST_PATH:
        path = account.home
    listing = list_folders(path, account, Path(settings.DATA))
    context |= {
        "listing": listing,
        "folders": [(name, str(Path(listing.path) / name)) for name in listing.folders],
        "account": account.name,
    }
    return render(request, "scheduler/_folders.html", context)


class ScriptForm(forms.Form):
    """A field for each argument, and the name and priority of the job."""

    name = forms.CharField(
        label="Name of the job (optional)", required=False, max_length=LONGEST_NAME
    )
    priority = forms.ChoiceField(
        required=False, choices=[("", "default"), *((str(n), str(n)) for n in range(5, 0, -1))]
    )

    def __init__(self, script: Script, data: Any = None) -> None:
        super().__init__(data)
        self._script = script
        self.fields = argument_fields(script) | self.fields

    def submitted_by(self, person: User) -> int | None:
        """The number of the new job; None: the form has errors."""
        if not self.is_valid():
            return None
        values = self.cleaned_data
        given = arguments_of(values)
        raw: dict[str, Any] = {"script": self._script.name, "script_args": given, "gpus": 1}
        raw |= {"name": values["name"]} if values["name"] else {}
        raw |= {"priority": int(values["priority"])} if values["priority"] else {}
        try:
            return intake.submit(raw, person, timezone.now()).pk
        except UnableToSubmit as error:
            for refusal in error.refusals:
                known = refusal.field if refusal.field in self.fields else None
                self.add_error(known, refusal.text)
            return None


class PathField(forms.CharField):
    """An absolute path. The form lists folders below it."""

    is_path = True


def argument_fields(script: Script, but: str = "") -> dict[str, forms.Field]:
    """The fields of the arguments, without that of the argument `but`."""
    return {
        PREFIX + name: field_of(rule if isinstance(rule, dict) else {}, name)
        for name, rule in script.schema.get("properties", {}).items()
        if name != but
    }


def arguments_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments in the values of a form that are given."""
    return {
        name.removeprefix(PREFIX): value
        for name, value in values.items()
        if name.startswith(PREFIX) and value not in ("", None)
    }


def field_of(rule: Mapping[str, Any], name: str) -> forms.Field:
    """The form's field for a property. The schema itself is checked when the job is submitted."""
    common: dict[str, Any] = {
        "label": str(rule.get("title", name.replace("_", " ").capitalize()))[:200],
        "help_text": " ".join(filter(None, (str(rule.get("description", "")), _bounds(rule))))[
            :500
        ],
        "required": False,
        "initial": _initial(rule.get("default")),
    }
    if rule.get("type") == "boolean":
        return forms.BooleanField(**common)
    if isinstance(rule.get("enum"), list):
        choices = [("", "–"), *((str(value), str(value)) for value in rule["enum"][:200])]
        return forms.ChoiceField(choices=choices, **common)
    example = rule.get("examples")
    attributes = {"autocomplete": "off", "spellcheck": "false"}
    if isinstance(example, list) and example:
        attributes["placeholder"] = str(_initial(example[0]))[:200]
    if rule.get("type") == "array":
        area = forms.Textarea({"rows": 3, **attributes})
        return forms.CharField(widget=area, max_length=LONGEST_VALUE, **common)
    kind = PathField if str(rule.get("pattern", "")).startswith("^/") else forms.CharField
    return kind(widget=forms.TextInput(attributes), max_length=LONGEST_VALUE, **common)


def _initial(default: Any) -> Any:
    return "\n".join(map(str, default)) if isinstance(default, list) else default


def _bounds(rule: Mapping[str, Any]) -> str:
    least, most = rule.get("minimum"), rule.get("maximum")
    if least is None and most is None:
        return ""
    if least is None:
        return f"At most {most}."
    return f"At least {least}." if most is None else f"{least} to {most}."
