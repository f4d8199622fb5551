"""Values that fill the form to submit a job: presets, past jobs, GPU models, past memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from django import forms
from django.conf import settings
from django.contrib.auth.models import User
from django.db.models import Q
from django.forms import BoundField
from msgspec import Struct

from monitor.facts.gpus import GpuState
from monitor.facts.input_rules import character_problem, is_number
from monitor.facts.readings import GpuReading, Health
from monitor.gpus.rows import snapshot as snapshots
from monitor.models import Gpu
from monitor.pages.requests import posted_text
from scheduler.facts.field_types import OURS, Door, Group, JobField, Kind
from scheduler.facts.job_fields import fields_of
from scheduler.facts.plans import PlanPolicy
from scheduler.jobs.pages.serialise import plain_gib
from scheduler.models import Job, JobPreset
from scheduler.submission.intake.actions import admit, checked_for
from scheduler.submission.intake.policy import UnableToSubmit

# The form to submit a job. It has the fields of REST and is checked by the same code.


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


MOST_RECENT, MOST_READ, MOST_PRESETS = 5, 60, 20
LONGEST_NAME, LONGEST_VALUES = 40, 20_000
# Values of variables may be secrets, and times and other jobs differ with each submission.
NOT_SAVED = {"env", "begin", "after", "after_success"}
SHORT = 36
MOST_FREE = 16


class Example(Struct, frozen=True):
    """A job to try first. gpus: 0 on a server whose GPUs cannot be read."""

    command: str
    gpus: int = 1

    def line(self, options: str = "") -> str:
        words = "gpucoord submit", options, "" if self.gpus else "--gpus 0", "--", self.command
        return " ".join(filter(None, words))


def example() -> Example:
    """It runs on this server as it is now."""
    if settings.CONFIG.probe == "simulated":
        # Without a driver to ask.
        return Example("echo Hello from a job")
    return Example("nvidia-smi -L") if Gpu.objects.exists() else Example("hostname", gpus=0)


class RecentJob(Struct, frozen=True):
    """The newest job of a command."""

    id: int
    text: str


class ModelChoice(Struct, frozen=True):
    """The GPUs of one model. free: idle, healthy and open for jobs now."""

    name: str
    count: int
    free: int
    memory_bytes: int | None
    capability: str


class FreeGpu(Struct, frozen=True):
    """A GPU that is idle, healthy and open for jobs now."""

    uuid: str
    label: str


def context(person: User) -> dict[str, Any]:
    """For the page, beside the form."""
    hosts = snapshots.newest_all()
    gpus = [gpu for host in hosts for gpu in host.gpus]
    return {
        "presets": presets(person),
        "recent": recent(person),
        "models": models(gpus),
        "free_gpus": free_gpus({host.host.name: host.gpus for host in hosts}),
    }


def presets(person: User) -> list[JobPreset]:
    """Those of operators for all users, then the user's own."""
    rows = JobPreset.objects.filter(Q(user=None) | Q(user=person))
    return sorted(rows.order_by("name")[:MOST_PRESETS], key=lambda row: row.user_id is not None)


def preset_values(person: User, pk: str) -> dict[str, Any]:
    """The form's values of a preset; {} if there is none that the user may use."""
    if not is_number(pk):
        return {}
    row = JobPreset.objects.filter(Q(user=None) | Q(user=person), pk=pk).first()
    return {} if row is None else form_values(row.values)


def form_values(values: object) -> dict[str, Any]:
    """Only the fields of the form, as texts and flags."""
    if not isinstance(values, Mapping):
        return {}
    names = {field.name for field in fields_of(Door.FORM)} - NOT_SAVED
    return {
        name: value if isinstance(value, bool) else str(value)
        for name, value in values.items()
        if name in names
    }


def save(person: User, request: Any) -> str:
    """Save the posted form as the user's preset. Returns what went wrong, else ""."""
    name = " ".join(posted_text(request, "preset_name", LONGEST_NAME).split())
    if not name or character_problem(name):
        return f"Write a name of 1–{LONGEST_NAME} characters for the preset."
    own = JobPreset.objects.filter(user=person)
    if own.count() >= MOST_PRESETS and not own.filter(name=name).exists():
        return f"You have {MOST_PRESETS} presets. Remove one first."
    values = {key: text for key, text in form_values(request.POST.dict()).items() if text}
    if sum(len(str(text)) for text in values.values()) > LONGEST_VALUES:
        return f"The values have more than {LONGEST_VALUES} characters, the most for a preset."
    JobPreset.objects.update_or_create(user=person, name=name, defaults={"values": values})
    return ""


def recent(person: User) -> list[RecentJob]:
    """The user's newest jobs with different commands."""
    rows = Job.objects.filter(owner=person, model_service=None, script="", interactive=False)
    columns = ("id", "command", "gpus")
    by_command: dict[tuple[str, int], RecentJob] = {}
    for id_, command, gpus in rows.order_by("-id").values_list(*columns)[:MOST_READ]:
        line = " ".join(command.split())
        text = line if len(line) <= SHORT else f"{line[: SHORT - 1]}…"
        by_command.setdefault((command, gpus), RecentJob(id_, text))
    return list(by_command.values())[:MOST_RECENT]


def models(gpus: Iterable[GpuReading]) -> Sequence[ModelChoice]:
    """The models of these GPUs, most powerful first by memory."""
    by_name: dict[str, list[GpuReading]] = {}
    for gpu in gpus:
        if gpu.name:
            by_name.setdefault(gpu.name, []).append(gpu)
    choices = [
        ModelChoice(
            name=name,
            count=len(same),
            free=sum(_is_free(gpu) for gpu in same),
            memory_bytes=same[0].memory_total_bytes,
            capability=same[0].compute_capability or "",
        )
        for name, same in by_name.items()
    ]
    return sorted(choices, key=lambda choice: (-(choice.memory_bytes or 0), choice.name))


def free_gpus(hosts: Mapping[str, Sequence[GpuReading]]) -> Sequence[FreeGpu]:
    """GPUs that a job could get now; those of each host by their number."""
    of_several = len(hosts) > 1
    free = [
        FreeGpu(gpu.uuid, f"GPU {gpu.index} of {host}" if of_several else f"GPU {gpu.index}")
        for host, gpus in sorted(hosts.items())
        for gpu in sorted(gpus, key=lambda gpu: gpu.index)
        if _is_free(gpu)
    ]
    return free[:MOST_FREE]


def _is_free(gpu: GpuReading) -> bool:
    return gpu.state is GpuState.IDLE and gpu.health is Health.OK and gpu.closed is None
