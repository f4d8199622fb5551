"""REST: the registry of scripts. Jobs of a script are submitted at /api/jobs/."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from django.core.exceptions import ValidationError
from django.http import HttpRequest
from ninja import Field, Router, Schema
from ninja.errors import HttpError
from ninja.responses import Status

from monitor.api import PlainLines, PlainText, RequestBody, caller
from monitor.pages.requests import InvalidInput
from scheduler.facts.scripts import Script, Word
from scheduler.models import ScriptDefinition
from scheduler.submission.scripts import rows

router = Router()
MOST_DESCRIPTION = 2000
LARGEST = 2**62


class ScriptBody(Schema):
    """A script that jobs can run."""

    name: str
    description: str
    argv: list[str | list[str]] = Field(
        description="Words with {argument}; no shell is used. [] = it runs in batches only."
    )
    worker: list[str | list[str]] = Field(
        description="A program that loads once and answers the items of a batch; [] = it has none."
    )
    schema_: dict[str, Any] = Field(
        alias="schema", description="JSON Schema of its arguments (`script_args`)."
    )
    gpu: Literal["yes", "optional", "no"]
    task_type: Literal["transcribe", "embed", "process"]
    item_argument: str | None = Field(description="The argument that gets the item of a batch.")
    gpu_memory_bytes: int | None
    usual_s: int | None = Field(description="Usual duration in seconds.")
    time_limit_s: int | None


class Scripts(Schema):
    scripts: list[ScriptBody]


class NewScriptBody(RequestBody):
    """A new script."""

    name: PlainText = Field(max_length=64, pattern="^[a-z][a-z0-9_]*$")
    description: PlainLines = Field("", max_length=MOST_DESCRIPTION)
    argv: list[str | list[str]] = Field([], max_length=200)
    worker: list[str | list[str]] = Field(
        [], max_length=200, description="Beside or instead of `argv`; for the items of batches."
    )
    schema_: dict[str, Any] = Field(default_factory=dict, alias="schema")
    gpu: Literal["yes", "optional", "no"] = "yes"
    task_type: Literal["transcribe", "embed", "process"] = "process"
    item_argument: PlainText = Field("", max_length=64)
    gpu_memory_bytes: int | None = Field(None, ge=1, le=LARGEST)
    usual_s: int | None = Field(None, ge=1, le=10**8)
    time_limit_s: int | None = Field(None, ge=1, le=10**8)


@router.get("", response=Scripts, summary="List the scripts", url_name="scripts", by_alias=True)
def list_scripts(request: HttpRequest) -> dict[str, Any]:
    """Submit a job of a script at `POST /api/jobs/` with `script` and `script_args`."""
    return {"scripts": [_body(script) for script in rows.enabled()]}


@router.post("", response={201: ScriptBody}, summary="Add a script", by_alias=True)
def add(request: HttpRequest, new: NewScriptBody) -> Status[dict[str, Any]]:
    """Operators only. 422: the name is taken, or the definition can't be used."""
    if not caller(request).is_staff:
        raise HttpError(403, "Only operators add scripts.")
    row = ScriptDefinition(**new.model_dump(by_alias=True))
    try:
        row.validate_unique()
        rows.check(row)
    except ValidationError as error:
        raise InvalidInput(
            [(field, text) for field, texts in error.message_dict.items() for text in texts]
        ) from None
    row.save()
    return Status(201, _body(rows.fact(row)))


def _words(template: Sequence[Word]) -> list[str | list[str]]:
    return [word if isinstance(word, str) else list(word) for word in template]


def _body(script: Script) -> dict[str, Any]:
    return {
        "name": script.name,
        "description": script.description,
        "argv": _words(script.argv),
        "worker": _words(script.worker),
        "schema": dict(script.schema),
        "gpu": script.gpu.value,
        "task_type": script.task_type.value,
        "item_argument": script.item_argument or None,
        "gpu_memory_bytes": script.memory_bytes,
        "usual_s": script.usual_s,
        "time_limit_s": script.time_limit_s,
    }
