"""Metrics of prompts and of the endpoint for language models; all from rows."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.db.models import Count, Min, QuerySet, Sum

from monitor.pages.metrics import Families
from monitor.runtime.rows.database import compiled_once
from scheduler.facts.language_models import OPEN, PromptStatus
from scheduler.models import ModelInstance, ModelService, ModelUse, Prompt

HELP = {
    "requests": "Requests to a model that ended, by prompts and by the endpoint.",
    "failed": "Requests to a model without an answer.",
    "warm": "Requests that waited for their model to wake.",
    "cold": "Requests that waited for a boot of their model.",
    "prompt_tokens": "Tokens that users sent to a model.",
    "completion_tokens": "Tokens that a model answered.",
    "first_token_s": "Seconds until the first byte of answers, as a sum.",
}
NAMES = {
    "requests": "gpucoord_model_requests_total",
    "failed": "gpucoord_model_requests_failed_total",
    "warm": "gpucoord_model_requests_warm_total",
    "cold": "gpucoord_model_requests_cold_total",
    "prompt_tokens": "gpucoord_model_prompt_tokens_total",
    "completion_tokens": "gpucoord_model_completion_tokens_total",
    "first_token_s": "gpucoord_model_first_token_seconds_total",
}


def add_metrics(into: Families, now: datetime) -> None:
    models = [name for (name,) in _names()]
    if models:
        _add_open(into, models, now)
        _add_in_flight(into)
    _add_use(into)


def _add_open(into: Families, models: list[str], now: datetime) -> None:
    rows = Prompt.objects.filter(status__in=[status.value for status in OPEN]).order_by()
    groups = rows.values_list("model", "status").annotate(Count("id"), Min("created_at"))
    counts = {(model, status): (count, oldest) for model, status, count, oldest in groups}
    for model in models:
        for status in sorted(OPEN):
            count, _ = counts.get((model, status.value), (0, None))
            labels = {"model": model, "status": status.value}
            into.gauge("gpucoord_prompts", "Prompts that have not ended.", labels, count)
        _, oldest = counts.get((model, PromptStatus.QUEUED.value), (0, None))
        wait = max(0.0, (now - oldest).total_seconds()) if oldest else 0
        help_text = "How long the prompt that waits longest has waited; 0 when none waits."
        into.gauge("gpucoord_prompts_oldest_wait_seconds", help_text, {"model": model}, wait)


def _add_in_flight(into: Families) -> None:
    rows = ModelInstance.objects.filter(ended_at=None).order_by()
    sums = rows.values_list("service__name").annotate(Sum("in_flight"))
    for model, in_flight in sums:
        help_text = "Requests that the instances of a model answer now."
        into.gauge("gpucoord_model_requests_in_flight", help_text, {"model": model}, in_flight)


def _add_use(into: Families) -> None:
    for model, *values in _sums():
        for (name, metric), value in zip(NAMES.items(), values, strict=True):
            into.counter(metric, HELP[name], {"model": model}, value)


@compiled_once
def _names() -> QuerySet[ModelService, tuple[str]]:
    return ModelService.objects.values_list("name")


@compiled_once
def _sums() -> QuerySet[ModelUse, tuple[Any, ...]]:
    sums = [Sum(name) for name in NAMES]
    return ModelUse.objects.order_by().values_list("model").annotate(*sums)
