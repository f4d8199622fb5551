"""Pages of prompts: the form of a model's page, the answer, the queue on the dashboard."""

from __future__ import annotations

from datetime import datetime
from typing import cast

from django.contrib import messages
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.db.models import Count, Min
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_POST, require_safe
from msgspec import Struct

from monitor.facts.input_rules import holds_unstorable, is_number
from monitor.pages.frames import Context
from scheduler.facts.language_models import (
    DEFAULT_PRIORITY,
    OPEN,
    NewPrompt,
    PromptStatus,
    PromptType,
)
from scheduler.language_models.prompts import rows as actions
from scheduler.models import Prompt

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
        row = actions.send(new, person, timezone.now())
    except actions.UnknownModel as error:
        raise Http404(str(error)) from None
    except (actions.NotAllowed, actions.TooLarge, actions.TooMany) as error:
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
