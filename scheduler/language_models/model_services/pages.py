"""Pages of model services, and what pages and REST show of them."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, cast

from django import forms
from django.conf import settings
from django.contrib import messages
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.db.models import Count, Min
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_http_methods, require_POST, require_safe
from msgspec import Struct

from monitor.facts.formats import duration
from monitor.facts.input_rules import character_problem, holds_unstorable, is_number
from monitor.journal.facts import EVENTS
from monitor.models import Event, Gpu
from monitor.pages.frames import Context
from scheduler.facts import model_fields as policy
from scheduler.facts.language_models import (
    DEFAULT_PRIORITY,
    OPEN,
    InstanceState,
    NewPrompt,
    PredictionMode,
    PromptStatus,
    PromptType,
)
from scheduler.facts.model_fields import MODEL_FIELDS, ModelField
from scheduler.facts.units import parse_duration
from scheduler.language_models.model_services import rows, steps
from scheduler.language_models.model_services.policy import Prediction
from scheduler.language_models.prompts import rows as prompts
from scheduler.models import ModelInstance, ModelService, Prompt
from scheduler.runner.accounts import MissingAccount

# In the order in which one state stands for the service.
ORDER = (
    InstanceState.READY,
    InstanceState.BOOTING,
    InstanceState.DRAINING,
    InstanceState.SLEEPING,
    InstanceState.COOLING,
)
SHAPES = {
    "busy": "busy",
    "ready": "ok",
    "booting": "waiting",
    "sleeping": "idle",
    "draining": "waiting",
    "cooling": "waiting",
    "failed": "failing",
}
ENDED_SHOWN, EVENTS_SHOWN = 10, 15
USE_OF = timedelta(hours=24)


def predicted(row: ModelService, now: datetime) -> Prediction | None:
    """None: it is switched off, or earlier weeks show no demand."""
    return None if row.prediction == PredictionMode.OFF.value else rows.prediction(row, now)


def summary(row: ModelService, opened: Sequence[ModelInstance]) -> str:
    """One word for the whole service: the best state of its instances, busy, stopped or failed."""
    states = {instance.state for instance in opened}
    if any(instance.is_busy for instance in opened):
        return "busy"
    for state in ORDER:
        if state.value in states:
            return state.value
    if not row.enabled:
        return "disabled"
    return InstanceState.FAILED.value if row.problem else InstanceState.STOPPED.value


def gpu_numbers() -> dict[str, int]:
    """The number of each GPU by its UUID."""
    return dict(Gpu.objects.values_list("uuid", "index"))


class InstanceLine(Struct, frozen=True):
    """A line of the table of instances. ready_in_s: of one that boots; None = unknown.

    host: another host that runs it; "" = this one, or none yet.
    """

    row: ModelInstance
    word: str
    shape: str
    gpus: str
    ready_in_s: float | None
    host: str


class ServiceLine(Struct, frozen=True):
    """A service with its instances that have not ended."""

    row: ModelService
    word: str
    shape: str
    instances: tuple[InstanceLine, ...]
    expected_boot_s: float

    @property
    def in_flight(self) -> int:
        return sum(line.row.in_flight for line in self.instances)

    @property
    def answer(self) -> str:
        """The time to the begin of an answer to a request of now; "" = unknown."""
        loaded = [
            line.row for line in self.instances if line.row.state == InstanceState.READY.value
        ]
        if any(row.in_flight < self.row.concurrency for row in loaded):
            return "at once"
        if loaded:
            return "after earlier requests"
        waits = [line.ready_in_s for line in self.instances if line.ready_in_s is not None]
        if waits:
            return f"in ~{duration(min(waits))}"
        is_startable = self.word == InstanceState.STOPPED.value
        return f"after ~{duration(self.expected_boot_s)} of loading" if is_startable else ""


def service_line(row: ModelService, numbers: dict[str, int], now: datetime) -> ServiceLine:
    opened: list[ModelInstance] = row.open_ones  # type: ignore[attr-defined]
    word = summary(row, opened)
    return ServiceLine(
        row=row,
        word=word,
        shape=SHAPES.get(word, "idle"),
        instances=tuple(_instance_line(instance, numbers, now) for instance in opened),
        expected_boot_s=rows.expected_boot_s(row),
    )


def _instance_line(instance: ModelInstance, numbers: dict[str, int], now: datetime) -> InstanceLine:
    word = "busy" if instance.is_busy else instance.state
    gpus = ", ".join(f"GPU {numbers[uuid]}" for uuid in instance.gpu_uuids if uuid in numbers)
    remains = (
        (instance.expected_ready_at - now).total_seconds() if instance.expected_ready_at else None
    )
    is_booting = instance.state == InstanceState.BOOTING.value
    return InstanceLine(
        row=instance,
        word=word,
        shape=SHAPES.get(word, "idle"),
        gpus=gpus or ("CPU" if instance.started_boot_at else ""),
        ready_in_s=remains if is_booting and remains is not None and remains > 0 else None,
        host="" if instance.host == settings.CONFIG.node else instance.host,
    )


@require_safe
def models(request: HttpRequest) -> HttpResponse:
    """All services, each with its state."""
    now, numbers = timezone.now(), gpu_numbers()
    lines = [service_line(row, numbers, now) for row in rows.services()]
    context = {"lines": lines, "endpoint_problem": rows.endpoint_problem()}
    return render(request, "scheduler/models.html", context)


@require_safe
def model(request: HttpRequest, name: str) -> HttpResponse:
    """One service: its instances, boot times and events."""
    row = _service(name)
    name = row.name
    ended = row.instances.filter(state__in=rows.ENDED_STATES).order_by("-ended_at")
    now, numbers = timezone.now(), gpu_numbers()
    context = {
        **form_context(request, name),
        "use": prompts.summary(name, now - USE_OF),
        "queue": next((queue for queue in queues() if queue.model == name), None),
        "predicted": predicted(row, now),
        "base_url": rows.base_url(request.get_host()),
        "endpoint_problem": rows.endpoint_problem(),
        "elsewhere": rows.elsewhere(row, settings.CONFIG.node, now)[0],
        "line": service_line(row, numbers, now),
        "settings": settings_of(row, numbers),
        "command": shlex.join(row.argv) if _is_staff(request) else None,
        "ended": ended[:ENDED_SHOWN],
        "boots": row.boots.order_by("gpu_model"),
        "events": Event.objects.filter(
            kind__in=EVENTS["models"], text__startswith=f"Model {row.name} "
        ).order_by("-at", "-id")[:EVENTS_SHOWN],
    }
    return render(request, "scheduler/model.html", context)


def settings_of(row: ModelService, numbers: Mapping[str, int]) -> list[tuple[str, str]]:
    """Title and text of each setting that all users may see, except its names."""
    left_out = {"name", "aliases", "argv"} | (set() if row.gpus else {"memory_mib"})
    fields = [field for field in MODEL_FIELDS if field.column not in left_out]
    texts = ((field.title, _text(field, row, numbers) or field.missing) for field in fields)
    return [(title, text) for title, text in texts if text]


def _text(field: ModelField, row: ModelService, numbers: Mapping[str, int]) -> str:
    value = field.out.of(row)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(f"GPU {numbers[each]}" if each in numbers else each for each in value)
    return value.replace("_", " ") if field.column == "role" else field.out.text(value or None)


@require_POST
def boot(request: HttpRequest, name: str) -> HttpResponse:
    return _act(request, name, steps.request_boot, "An instance of {name} is requested.")


@require_POST
def unload(request: HttpRequest, name: str) -> HttpResponse:
    return _act(request, name, steps.request_unload, "{name} is being unloaded.")


def _act(
    request: HttpRequest,
    name: str,
    action: Callable[[ModelService, User, datetime], object],
    done: str,
) -> HttpResponse:
    if not _is_staff(request):
        raise PermissionDenied
    try:
        action(_service(name), cast(User, request.user), timezone.now())
        messages.success(request, done.format(name=name))
    except steps.Conflict as error:
        messages.error(request, str(error))
    return redirect("model", name=name)


def _is_staff(request: HttpRequest) -> bool:
    return cast(User, request.user).is_staff


def _service(name: str) -> ModelService:
    row = rows.find(name)
    if row is None:
        raise Http404("There is no such model service.")
    return row


# The form to add a model from a template, with a dry run.

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
    usual_boot = forms.CharField(
        required=False,
        max_length=40,
        label="Usual time of a boot",
        help_text="Such as `90s`, until a boot is measured. Empty: by the size of the model.",
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

    def clean_usual_boot(self) -> int | None:
        text = self.cleaned_data["usual_boot"]
        try:
            return round(parse_duration(text).total_seconds()) if text else None
        except ValueError as error:
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
        fields = {"argv": "command", "memory_mib": "memory", "boot_s": "usual_boot"}
        for column, text in steps.problems(ModelService(), columns, self._person):
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
        values = self.cleaned_data
        return {
            "name": values["name"],
            "argv": argv,
            "memory_mib": values["memory"],
            "boot_s": values["usual_boot"],
            "health_path": health_path,
        }


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
        return steps.create(form.columns(), person, timezone.now())
    except steps.InvalidService as error:
        for _, text in error.errors:
            form.add_error(None, text)
        return None


def _checked(form: NewModelForm) -> dict[str, Any]:
    try:
        result = steps.dry_run(form.columns(), form.model_source())
    except MissingAccount as error:
        return {"findings": [steps.Finding(str(error), False)]}
    is_ready = all(finding.is_ok is not False for finding in result.findings)
    argv = shlex.join(result.argv)
    return {"findings": result.findings, "argv": argv, "is_ready": is_ready}


def _printable(text: str) -> str:
    if problem := character_problem(text):
        raise forms.ValidationError(problem)
    return text


# Pages of prompts: the form of a model's page, the answer, the queue on the dashboard.


LONGEST_TEXT = 100_000
SHOWN = 5


@require_POST
def send(request: HttpRequest, name: str) -> HttpResponse:
    """Queue a prompt from the form, then show its answer on the model's page."""
    person = cast(User, request.user)
    if not person.is_authenticated:
        raise PermissionDenied
    new = _read(request, name)
    address = reverse("model", args=[name])
    if isinstance(new, str):
        messages.error(request, new)
        return redirect(address)
    try:
        row = prompts.send(new, person, timezone.now())
    except prompts.UnknownModel as error:
        raise Http404(str(error)) from None
    except (prompts.NotAllowed, prompts.TooLarge, prompts.TooMany) as error:
        messages.error(request, str(error))
        return redirect(address)
    return redirect(f"{address}?prompt={row.pk}#answer")


def _read(request: HttpRequest, name: str) -> NewPrompt | str:
    """The prompt of the form; a sentence when it cannot be sent."""
    text = request.POST.get("prompt", "").strip()
    kind, priority = request.POST.get("type", ""), request.POST.get("priority", "")
    if not text:
        return "Write a prompt."
    if len(text) > LONGEST_TEXT:
        return f"A prompt of this form may have at most {LONGEST_TEXT} characters; use REST."
    if holds_unstorable([text]):
        return "The text has a character that can't be stored."
    if kind not in set(PromptType) or priority not in {"1", "2", "3", "4", "5"}:
        return "Choose a type and a priority of the list."
    return NewPrompt(
        model=name,
        messages=({"role": "user", "content": text},),
        type=PromptType(kind),
        priority=int(priority),
    )


@require_safe
def answer(request: HttpRequest, number: int) -> HttpResponse:
    """The fragment of one of the user's own prompts; it polls until the prompt has ended."""
    rows = Prompt.objects.filter(owner=cast(User, request.user)) if _is_user(request) else None
    row = rows.filter(pk=number).first() if rows is not None and number < 2**62 else None
    if row is None:
        raise Http404("There is no such prompt.")
    return render(request, "scheduler/_answer.html", {"prompt": row})


def form_context(request: HttpRequest, name: str) -> Context:
    """For the model's page: the form, the user's newest prompts, and the chosen one."""
    if not _is_user(request):
        return {}
    own = Prompt.objects.filter(owner=cast(User, request.user), model=name)
    chosen = request.GET.get("prompt", "")
    number = int(chosen) if is_number(chosen) else None
    others = own if number is None else own.exclude(pk=number)
    return {
        "types": [kind.value for kind in PromptType],
        "default_type": PromptType.GENERATE.value,
        "priorities": range(1, 6),
        "default_priority": DEFAULT_PRIORITY,
        "prompt": None if number is None else own.filter(pk=number).first(),
        "own_prompts": others.defer("result", "parameters").order_by("-pk")[:SHOWN],
    }


def _is_user(request: HttpRequest) -> bool:
    return cast(User, request.user).is_authenticated


class ModelQueue(Struct, frozen=True):
    """The prompts of one model that have not ended. why: what the oldest waits for."""

    model: str
    waiting: int = 0
    running: int = 0
    oldest_at: datetime | None = None
    why: str = ""


def queues() -> list[ModelQueue]:
    """Of each model that has open prompts, by name."""
    rows = Prompt.objects.filter(status__in=[status.value for status in OPEN]).order_by()
    counts: dict[str, dict[str, int]] = {}
    oldest: dict[str, datetime] = {}
    for model, status, count, first_at in rows.values_list("model", "status").annotate(
        Count("id"), Min("created_at")
    ):
        counts.setdefault(model, {})[status] = count
        if status == PromptStatus.QUEUED.value:
            oldest[model] = first_at
    return [
        ModelQueue(
            model=model,
            waiting=by_status.get(PromptStatus.QUEUED.value, 0),
            running=sum(by_status.values()) - by_status.get(PromptStatus.QUEUED.value, 0),
            oldest_at=oldest.get(model),
            why=_why(model) if model in oldest else "",
        )
        for model, by_status in sorted(counts.items())
    ]


def _why(model: str) -> str:
    waiting = Prompt.objects.filter(model=model, status=PromptStatus.QUEUED.value)
    return waiting.order_by("pk").values_list("waits_for", flat=True).first() or ""
