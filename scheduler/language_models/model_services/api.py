"""REST: model services and their instances."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from functools import reduce
from operator import or_
from types import UnionType
from typing import Any, get_args

from django.conf import settings
from django.contrib.auth.models import User
from django.http import Http404, HttpRequest
from django.utils import timezone
from ninja import Field, Router, Schema
from ninja.errors import HttpError
from ninja.responses import Status
from pydantic import create_model

from monitor.api import PlainText, RequestBody, answer_model, body_of, caller
from monitor.facts.formats import values_of
from monitor.gpus.rows import closures as gpu_closures
from monitor.pages.requests import InvalidInput
from scheduler.facts.language_models import InstanceState
from scheduler.facts.model_fields import MODEL_FIELDS, REQUEST_NAMES, ModelField
from scheduler.language_models.model_services import pages, rows, steps
from scheduler.language_models.prompts import rows as prompts
from scheduler.models import ModelInstance, ModelService

router = Router()
OPERATORS_ONLY = "Only operators may change model services."


def _request_field(field: ModelField, *, is_required: bool = False) -> tuple[Any, Any]:
    """Its type and its limits in a request; null: as if it were left out."""
    text = f"{field.help} {field.json_help}".strip() or None
    kinds: dict[Any, Any] = {str: PlainText, list[str]: list[PlainText]}
    parts = get_args(field.json) if isinstance(field.json, UnionType) else (field.json,)
    kind: Any = reduce(or_, (kinds.get(part, part) for part in parts))
    default = ... if is_required else None
    return kind if is_required else kind | None, Field(default, description=text, **field.limits)


_Change: Any = create_model(  # type: ignore[call-overload]
    "_Change",
    __base__=RequestBody,
    **{f.request_name: _request_field(f) for f in MODEL_FIELDS if f.column != "name"},
)


class ModelChange(_Change):  # type: ignore[misc]  # its fields follow from the table
    """Fields of a model service. Fields that are left out stay as they are, or get the default."""


_New: Any = create_model(  # type: ignore[call-overload]
    "_New",
    __base__=ModelChange,
    **{
        f.request_name: _request_field(f, is_required=True)
        for f in MODEL_FIELDS
        if f.column in ("name", "argv")
    },
)


class NewModel(_New):  # type: ignore[misc]  # its fields follow from the table
    """A new model service."""


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


_Settings = answer_model("_Settings", Schema, (field.out for field in MODEL_FIELDS))


class ModelLine(_Settings):  # type: ignore[misc,valid-type]  # its settings follow from the table
    """A model service; `state` sums up its instances."""

    state: str
    problem: str
    predicted: PredictionLine | None = Field(description="null: earlier weeks show no demand.")
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
    person = caller(request)
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
        row = steps.create(values, person, timezone.now())
    except steps.InvalidService as error:
        raise InvalidInput(_named(error.errors)) from None
    return Status(201, _line(_service(row.name), person, pages.gpu_numbers()))


# Names may have "/", so these come before the path of a model itself.
@router.post(
    "{path:name}/boot/", response=ModelLine, summary="Start an instance of a model service"
)
def boot_model(request: HttpRequest, name: str) -> dict[str, Any]:
    """Operators only. Nothing happens while an instance serves or boots."""
    return _ask(request, name, steps.request_boot)


@router.post("{path:name}/unload/", response=ModelLine, summary="Unload a model service")
def unload_model(request: HttpRequest, name: str) -> dict[str, Any]:
    """Operators only. Requests in flight may end first."""
    return _ask(request, name, steps.request_unload)


@router.get("{path:name}/", response=ModelLine, summary="Show a model service")
def show_model(request: HttpRequest, name: str) -> dict[str, Any]:
    return _line(_service(name), caller(request), pages.gpu_numbers())


@router.patch("{path:name}/", response=ModelLine, summary="Change a model service")
def change_model(request: HttpRequest, name: str, new: ModelChange) -> dict[str, Any]:
    """Operators only. Running instances keep their command and memory."""
    person = _operator(request)
    row = _service(name)
    try:
        steps.change(row, _columns(new), person, timezone.now())
    except steps.InvalidService as error:
        raise InvalidInput(_named(error.errors)) from None
    return _line(_service(row.name), person, pages.gpu_numbers())


@router.delete("{path:name}/", response={204: None}, summary="Remove a model service")
def remove_model(request: HttpRequest, name: str) -> Status[None]:
    """Operators only. Its instances are stopped."""
    person = _operator(request)
    steps.remove(_service(name), person, timezone.now())
    return Status(204, None)


def _ask(
    request: HttpRequest, name: str, action: Callable[[ModelService, User, datetime], object]
) -> dict[str, Any]:
    person = _operator(request)
    try:
        action(_service(name), person, timezone.now())
    except steps.Conflict as error:
        raise HttpError(409, str(error)) from None
    return _line(_service(name), person, pages.gpu_numbers())


def _columns(new: ModelChange) -> dict[str, Any]:
    """The columns that the request sets. Raises InvalidInput."""
    given = new.model_dump()
    values: dict[str, Any] = {}
    wrong: list[tuple[str, str]] = []
    for field in MODEL_FIELDS:
        value = given.get(field.request_name)
        if value is None:
            continue
        read = _gpu_list if field.column == "on_gpus" else field.read
        try:
            values[field.column] = read(value) if read else value
        except (ValueError, OverflowError) as error:
            wrong.append((field.request_name, str(error)))
    if wrong:
        raise InvalidInput(wrong)
    return values


def _gpu_list(value: list[str]) -> list[str]:
    return gpu_closures.uuids_of(value, settings.CONFIG.node)


def _named(errors: list[tuple[str, str]]) -> list[tuple[str, str]]:
    return [(REQUEST_NAMES.get(column, column), text) for column, text in errors]


def _service(name: str) -> ModelService:
    row = rows.find(name)
    if row is None:
        raise Http404("There is no such model service.")
    return row


def _line(row: ModelService, person: User, numbers: dict[str, int]) -> dict[str, Any]:
    opened: list[ModelInstance] = row.open_ones  # type: ignore[attr-defined]
    now = timezone.now()
    return {
        **values_of((field.out for field in MODEL_FIELDS), row, sees_all=person.is_staff),
        "state": pages.summary(row, opened),
        "problem": row.problem,
        "expected_boot_s": rows.expected_boot_s(row),
        "elsewhere": rows.elsewhere(row, settings.CONFIG.node, now)[0],
        "predicted": pages.predicted(row, now),
        "use": prompts.summary(row.name, now - pages.USE_OF),
        "instances": [_instance(instance, numbers) for instance in opened],
        "boots": [body_of(BootLine, boot) for boot in row.boots.all()],
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
    person = caller(request)
    if not person.is_staff:
        raise HttpError(403, OPERATORS_ONLY)
    return person
