"""REST: model services and their instances."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, Literal

from django.conf import settings
from django.contrib.auth.models import User
from django.http import Http404, HttpRequest
from django.utils import timezone
from ninja import Field, Router, Schema
from ninja.errors import HttpError
from ninja.responses import Status

from monitor.api import InvalidInput, PlainText, RequestBody, body_of
from monitor.gpus import rows as gpu_rows
from scheduler.facts.model_services import InstanceState, Role
from scheduler.facts.units import parse_duration
from scheduler.language_models.model_services import actions, pages
from scheduler.language_models.model_services.policy import services as policy
from scheduler.language_models.model_services.policy.services import (
    MOST_ALIASES,
    MOST_INSTANCES,
    MOST_REQUESTS,
)
from scheduler.language_models.model_services.rows import demand
from scheduler.language_models.model_services.rows import services as rows
from scheduler.language_models.prompts import rows as prompts
from scheduler.models import ModelInstance, ModelService

router = Router()
PredictionName = Literal["off", "suggest", "automatic"]
RoleName = Literal["brain_primary", "brain_secondary", "worker_or_script"]
OPERATORS_ONLY = "Only operators may change model services."
LONGEST_KEEP_ALIVE = timedelta(days=3650)


class ModelChange(RequestBody):
    """Fields of a model service. Fields that are left out stay as they are, or get the default."""

    command: PlainText | list[PlainText] | None = Field(
        None,
        description="The program and its arguments, as one text or as a list. No shell runs it. "
        "{model}, {port}, {gpu} and {gpu_memory_fraction} are filled in.",
        examples=["llama-server --model /models/q.gguf --alias {model} --port {port}"],
    )
    aliases: list[PlainText] | None = Field(
        None,
        max_length=MOST_ALIASES,
        description="Further names in requests, such as gpt-4o.",
        examples=[["gpt-4o"]],
    )
    enabled: bool | None = None
    health_path: PlainText | None = Field(None, max_length=200)
    api_base_path: PlainText | None = Field(None, max_length=200)
    gpu_memory: PlainText | int | None = Field(
        None, description='On each GPU, such as "20GiB"; a JSON integer is in bytes. "" = unknown.'
    )
    gpus: int | None = Field(
        None, ge=0, le=64, description="GPUs of each instance; 0: it runs on the CPU."
    )
    min_instances: int | None = Field(None, ge=0, le=MOST_INSTANCES)
    max_instances: int | None = Field(None, ge=1, le=MOST_INSTANCES)
    concurrency: int | None = Field(
        None, ge=1, le=MOST_REQUESTS, description="Requests that an instance answers at a time."
    )
    account: PlainText | None = Field(
        None, max_length=150, description="The OS account of its processes. Administrators only."
    )
    on_gpus: list[PlainText] | None = Field(
        None, max_length=64, description="Only on these GPUs: UUIDs, or numbers as text."
    )
    role: RoleName | None = None
    pin: bool | None = Field(None, description="Never evicted.")
    prediction: PredictionName | None = Field(
        None,
        description="From the same hour of earlier weeks: suggest instances on the page, or boot "
        "them before they are needed.",
    )
    keep_alive: PlainText | float | None = Field(
        None,
        description='Idle time before it is unloaded, such as "5min"; a number is in seconds. '
        '"never": it stays.',
    )
    min_residency: PlainText | float | None = Field(
        None, description="Least time between its boot and an eviction, such as 60s."
    )
    boot_timeout: PlainText | float | None = None
    usual_boot: PlainText | float | None = Field(
        None,
        description='Expected time of a boot until one is measured, such as "90s"; "" = by the'
        " size of the model.",
    )
    sleep_path: PlainText | None = Field(None, max_length=200)
    wake_path: PlainText | None = Field(None, max_length=200)


class NewModel(ModelChange):
    """A new model service."""

    name: PlainText = Field(max_length=100, examples=["qwen2.5:14b"])
    command: PlainText | list[PlainText] = Field(
        description="The program and its arguments, as one text or as a list. No shell runs it. "
        "{model}, {port}, {gpu} and {gpu_memory_fraction} are filled in."
    )


class InstanceLine(Schema):
    id: int
    state: InstanceState
    busy: bool = Field(description="It answers requests now.")
    reason: str
    since: datetime
    job: int | None
    host: str
    gpu: int | None = Field(description="The number of its first GPU; null: it runs on the CPU.")
    gpus: list[int]
    gpu_uuids: list[str]
    pid: int | None
    port: int | None
    gpu_memory_bytes: int | None
    started_boot: datetime | None
    expected_ready: datetime | None
    ready_at: datetime | None
    last_request_at: datetime | None
    in_flight: int
    tasks_completed: int
    failures: int


class BootLine(Schema):
    gpu_model: str = Field(description='"" = on the CPU.')
    boot_s: float | None
    boots: int
    peak_memory_bytes: int | None


class PredictionLine(Schema):
    instances: int
    reason: str


class UseLine(Schema):
    """The last 24 hours. hot: taken by a ready instance; warm, cold: after a wake, a boot."""

    requests: int
    failed: int
    hot: int
    warm: int
    cold: int
    prompt_tokens: int
    completion_tokens: int
    first_token_s: float | None = Field(description="Mean seconds until the first byte.")


class ModelLine(Schema):
    """A model service; `state` sums up its instances."""

    name: str
    aliases: list[str]
    state: str
    problem: str
    enabled: bool
    command: list[str] | None = Field(description="Operators only; else null.")
    health_path: str
    api_base_path: str
    gpus: int
    gpu_memory_bytes: int | None
    on_gpus: list[str]
    min_instances: int
    max_instances: int
    concurrency: int
    role: Role
    pin: bool
    prediction: PredictionName
    predicted: PredictionLine | None = Field(description="null: earlier weeks show no demand.")
    keep_alive_s: int | None
    min_residency_s: int
    boot_timeout_s: int
    boot_s: int | None = Field(description="As stated by an operator; null: by its size.")
    sleep_path: str
    wake_path: str
    account: str
    expected_boot_s: float = Field(
        description="Learned, else as stated, else by the size of the model."
    )
    elsewhere: str = Field(
        description="Which hosts run it, and where to send requests, if only other hosts have ready"
        ' instances; "" = here.'
    )
    instances: list[InstanceLine]
    boots: list[BootLine]
    use: UseLine


class Models(Schema):
    base_url: str | None = Field(
        description="Of the OpenAI-compatible endpoint; it ends with /v1. null: it does not run."
    )
    endpoint_problem: str = Field(
        description='Why the endpoint does not listen, in a sentence; "" = it does.'
    )
    models: list[ModelLine]


@router.get("", response=Models, summary="List model services", url_name="models")
def list_models(request: HttpRequest) -> dict[str, Any]:
    person = _person(request)
    numbers = pages.gpu_numbers()
    return {
        "base_url": rows.base_url(request.get_host()),
        "endpoint_problem": rows.endpoint_problem(),
        "models": [_line(row, person, numbers) for row in rows.services()],
    }


@router.post("", response={201: ModelLine}, summary="Add a model service", url_name="models")
def add_model(request: HttpRequest, new: NewModel) -> Status[dict[str, Any]]:
    """Operators only."""
    person = _operator(request)
    values = _columns(new)
    try:
        row = actions.create(values, person, timezone.now())
    except actions.InvalidService as error:
        raise InvalidInput(_named(error.errors)) from None
    return Status(201, _line(_service(row.name), person, pages.gpu_numbers()))


# Names may have "/", so these come before the path of a model itself.
@router.post(
    "{path:name}/boot/", response=ModelLine, summary="Start an instance of a model service"
)
def boot_model(request: HttpRequest, name: str) -> dict[str, Any]:
    """Operators only. Nothing happens while an instance serves or boots."""
    return _ask(request, name, actions.request_boot)


@router.post("{path:name}/unload/", response=ModelLine, summary="Unload a model service")
def unload_model(request: HttpRequest, name: str) -> dict[str, Any]:
    """Operators only. Requests in flight may end first."""
    return _ask(request, name, actions.request_unload)


@router.get("{path:name}/", response=ModelLine, summary="Show a model service")
def show_model(request: HttpRequest, name: str) -> dict[str, Any]:
    return _line(_service(name), _person(request), pages.gpu_numbers())


@router.patch("{path:name}/", response=ModelLine, summary="Change a model service")
def change_model(request: HttpRequest, name: str, new: ModelChange) -> dict[str, Any]:
    """Operators only. Running instances keep their command and memory."""
    person = _operator(request)
    row = _service(name)
    try:
        actions.change(row, _columns(new), person, timezone.now())
    except actions.InvalidService as error:
        raise InvalidInput(_named(error.errors)) from None
    return _line(_service(row.name), person, pages.gpu_numbers())


@router.delete("{path:name}/", response={204: None}, summary="Remove a model service")
def remove_model(request: HttpRequest, name: str) -> Status[None]:
    """Operators only. Its instances are stopped."""
    person = _operator(request)
    actions.remove(_service(name), person, timezone.now())
    return Status(204, None)


def _ask(
    request: HttpRequest, name: str, action: Callable[[ModelService, User, datetime], object]
) -> dict[str, Any]:
    person = _operator(request)
    try:
        action(_service(name), person, timezone.now())
    except actions.Conflict as error:
        raise HttpError(409, str(error)) from None
    return _line(_service(name), person, pages.gpu_numbers())


def _columns(new: ModelChange) -> dict[str, Any]:
    """The columns that the request sets. Raises InvalidInput."""
    given = {name: value for name, value in new.model_dump().items() if value is not None}
    values: dict[str, Any] = {}
    wrong: list[tuple[str, str]] = []
    for name, value in given.items():
        column, read = READERS.get(name, (name, _same))
        try:
            values[column] = read(value)
        except (ValueError, OverflowError) as error:
            wrong.append((name, str(error)))
    if wrong:
        raise InvalidInput(wrong)
    return values


def _same(value: Any) -> Any:
    return value


def _mib(value: str | int) -> int | None:
    return policy.memory_mib(f"{value} B" if isinstance(value, int) else value)


def _seconds(value: str | float) -> int:
    text = f"{value} s" if isinstance(value, int | float) else value
    duration = parse_duration(text) if text != "0 s" else timedelta()
    if duration > LONGEST_KEEP_ALIVE:
        raise ValueError("Write a duration of at most ten years.")
    return round(duration.total_seconds())


def _keep_alive(value: str | float) -> int | None:
    return None if value == "never" else _seconds(value)


def _gpu_list(value: list[str]) -> list[str]:
    return gpu_rows.uuids_of(value, settings.CONFIG.node)


READERS: dict[str, tuple[str, Any]] = {
    "command": ("argv", lambda value: list(policy.parse_argv(value))),
    "gpu_memory": ("memory_mib", _mib),
    "keep_alive": ("keep_alive_s", _keep_alive),
    "min_residency": ("min_residency_s", _seconds),
    "boot_timeout": ("boot_timeout_s", _seconds),
    "usual_boot": ("boot_s", lambda value: _seconds(value) if value != "" else None),
    "on_gpus": ("on_gpus", _gpu_list),
}
FIELDS = {column: name for name, (column, _) in READERS.items()}


def _named(errors: list[tuple[str, str]]) -> list[tuple[str, str]]:
    return [(FIELDS.get(column, column), text) for column, text in errors]


def _service(name: str) -> ModelService:
    row = rows.find(name)
    if row is None:
        raise Http404("There is no such model service.")
    return row


def _line(row: ModelService, person: User, numbers: dict[str, int]) -> dict[str, Any]:
    opened: list[ModelInstance] = row.open_ones  # type: ignore[attr-defined]
    now = timezone.now()
    return {
        **{
            name: getattr(row, name)
            for name in actions.COLUMNS
            if name not in ("argv", "memory_mib")
        },
        "state": pages.summary(row, opened),
        "problem": row.problem,
        "command": row.argv if person.is_staff else None,
        "gpu_memory_bytes": None if row.memory_mib is None else row.memory_mib * rows.MIB,
        "expected_boot_s": rows.expected_boot_s(row),
        "elsewhere": demand.elsewhere(row, settings.CONFIG.node, now)[0],
        "predicted": pages.predicted(row, now),
        "use": prompts.summary(row.name, now - pages.USE_OF),
        "instances": [_instance(instance, numbers) for instance in opened],
        "boots": [
            {
                "gpu_model": boot.gpu_model,
                "boot_s": boot.boot_s,
                "boots": boot.boots,
                "peak_memory_bytes": boot.peak_memory_bytes,
            }
            for boot in row.boots.all()
        ],
    }


def _instance(row: ModelInstance, numbers: dict[str, int]) -> dict[str, Any]:
    gpus = [numbers[uuid] for uuid in row.gpu_uuids if uuid in numbers]
    return body_of(
        InstanceLine,
        row,
        busy=row.is_busy,
        job=row.job_id,
        gpu=gpus[0] if gpus else None,
        gpus=gpus,
        gpu_memory_bytes=row.memory_bytes,
        started_boot=row.started_boot_at,
        expected_ready=row.expected_ready_at,
    )


def _operator(request: HttpRequest) -> User:
    person = _person(request)
    if not person.is_staff:
        raise HttpError(403, OPERATORS_ONLY)
    return person


def _person(request: HttpRequest) -> User:
    person: User = request.auth  # type: ignore[attr-defined]
    return person
