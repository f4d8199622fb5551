"""REST: prompts to language models, and their answers."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Annotated, Any

from django.contrib.auth.models import User
from django.http import Http404, HttpRequest
from django.utils import timezone
from ninja import Field, Query, Router, Schema
from ninja.errors import HttpError
from ninja.responses import Status
from pydantic import JsonValue

from monitor.api import PlainText, RequestBody, caller
from monitor.pages.requests import InvalidInput
from scheduler.facts.language_models import DEFAULT_PRIORITY, NewPrompt, PromptStatus, PromptType
from scheduler.language_models.prompts import rows as actions
from scheduler.models import Prompt

router = Router()
LONGEST_TEXT = 1_000_000
MOST_MESSAGES = 1000
LARGEST_PARAMETERS = 64 * 1024
MOST_LISTED = 500
ONE_OF = "Send either `prompt` or `messages`."


class MessageBody(RequestBody):
    role: str = Field(pattern="^(system|user|assistant|developer)$")
    content: str = Field(max_length=LONGEST_TEXT)


class NewPromptBody(RequestBody):
    """A prompt as one text, or as the messages of a conversation."""

    model: PlainText = Field(max_length=100, examples=["qwen2.5:14b"])
    type: PromptType = Field(PromptType.GENERATE, strict=False)
    prompt: str | None = Field(None, max_length=LONGEST_TEXT)
    messages: list[MessageBody] | None = Field(None, max_length=MOST_MESSAGES)
    priority: int = Field(DEFAULT_PRIORITY, ge=1, le=5, description="5 is served first.")
    parameters: dict[str, JsonValue] = Field(
        default_factory=dict,
        description="Further fields of the request to the model, such as temperature and "
        "max_tokens.",
    )


class PromptLine(Schema):
    """A prompt without its texts."""

    id: int
    model: str
    type: PromptType
    priority: int
    owner: str
    status: PromptStatus
    waits_for: str = Field(description='Why it waits, in a sentence; "" = it does not.')
    attempt: int = Field(description="How often it was given to an instance.")
    instance: int | None = Field(description="The number of the model instance.")
    host: str
    tokens: int | None = Field(description="Of prompt and answer; null: not reported.")
    prompt_tokens: int | None
    completion_tokens: int | None
    latency_s: float | None = Field(description="From its creation to its end.")
    created_at: datetime
    assigned_at: datetime | None
    started_at: datetime | None
    first_token_at: datetime | None
    finished_at: datetime | None


class PromptDetail(PromptLine):
    """With its texts, which only its owner sees; null for operators."""

    messages: list[dict[str, str]] | None
    parameters: dict[str, Any] | None
    result: str | None = Field(description="The answer; while it runs, its beginning.")
    error: str | None = Field(description='Why it failed; "" = it did not.')


class PromptFilters(Schema):
    status: PromptStatus | None = None
    model: str | None = Field(None, max_length=100)
    before: int | None = Field(None, ge=1, le=2**62, description="Prompts with smaller numbers.")
    limit: int = Field(100, ge=1, le=MOST_LISTED)


class Prompts(Schema):
    prompts: list[PromptLine]


class CancelledPrompt(Schema):
    cancelled: bool = Field(description="false: it had ended already.")


@router.post("", response={201: PromptDetail}, summary="Send a prompt", url_name="prompts")
def send(request: HttpRequest, new: NewPromptBody) -> Status[dict[str, Any]]:
    """Queue a prompt. It is answered once, or fails with its reason.

    404: there is no such model. 422: it is larger than your waiting prompts may be. 429: too
    many of your prompts wait, their texts are too large together, or your quota for today is used
    up.
    """
    try:
        row = actions.send(_new(new), caller(request), timezone.now())
    except actions.UnknownModel as error:
        raise Http404(str(error)) from None
    except actions.NotAllowed as error:
        raise InvalidInput([("priority", str(error))]) from None
    except actions.TooLarge as error:
        raise InvalidInput([("prompt", str(error))]) from None
    except actions.TooMany as error:
        raise HttpError(429, str(error)) from None
    return Status(201, _detail(row, caller(request)))


@router.get("", response=Prompts, summary="List prompts", url_name="prompts")
def list_prompts(
    request: HttpRequest, filters: Annotated[PromptFilters, Query()]
) -> dict[str, Any]:
    """Your prompts, newest first; operators see those of all users, without their texts."""
    person = caller(request)
    rows = Prompt.objects.select_related("owner").defer("messages", "result", "parameters")
    if not person.is_staff:
        rows = rows.filter(owner=person)
    if filters.status is not None:
        rows = rows.filter(status=filters.status.value)
    if filters.model is not None:
        rows = rows.filter(model=filters.model)
    if filters.before is not None:
        rows = rows.filter(pk__lt=filters.before)
    return {"prompts": [line(row) for row in rows.order_by("-pk")[: filters.limit]]}


@router.get("{number}/", response=PromptDetail, summary="Show a prompt")
def show(request: HttpRequest, number: int) -> dict[str, Any]:
    """Its owner and operators; only its owner sees the texts."""
    person = caller(request)
    return _detail(_prompt(number, person), person)


@router.post("{number}/cancel/", response=CancelledPrompt, summary="Cancel a prompt")
def cancel(request: HttpRequest, number: int) -> dict[str, bool]:
    """Its owner and operators."""
    person = caller(request)
    return {"cancelled": actions.cancel(_prompt(number, person), person, timezone.now())}


def _new(body: NewPromptBody) -> NewPrompt:
    """Raises InvalidInput."""
    if (body.prompt is None) == (body.messages is None):
        raise InvalidInput([("prompt", ONE_OF)])
    if body.messages is not None and not body.messages:
        raise InvalidInput([("messages", "Send at least one message.")])
    if len(json.dumps(body.parameters)) > LARGEST_PARAMETERS:
        raise InvalidInput([("parameters", "The parameters may have at most 64 KiB.")])
    if body.messages is None:
        messages = [{"role": "user", "content": body.prompt or ""}]
    else:
        messages = [message.model_dump() for message in body.messages]
        if sum(len(message.content) for message in body.messages) > LONGEST_TEXT:
            text = f"The messages together may have at most {LONGEST_TEXT} characters."
            raise InvalidInput([("messages", text)])
    return NewPrompt(
        model=body.model,
        messages=tuple(messages),
        type=body.type,
        priority=body.priority,
        parameters=body.parameters,
    )


def line(row: Prompt) -> dict[str, Any]:
    names = [name for name in PromptLine.model_fields if name != "owner"]
    return {name: getattr(row, name) for name in names} | {"owner": row.owner.get_username()}


def _detail(row: Prompt, person: User) -> dict[str, Any]:
    is_own = row.owner_id == person.pk
    names = ("messages", "parameters", "result", "error")
    return line(row) | {name: getattr(row, name) if is_own else None for name in names}


def _prompt(number: int, person: User) -> Prompt:
    """Raises Http404, and HttpError (403) for prompts of others."""
    rows = Prompt.objects.select_related("owner")
    row = rows.filter(pk=number).first() if 0 < number < 2**63 else None
    if row is None:
        raise Http404("There is no such prompt.")
    if row.owner_id != person.pk and not person.is_staff:
        raise HttpError(403, "Only the owner of a prompt and operators may see it.")
    return row
