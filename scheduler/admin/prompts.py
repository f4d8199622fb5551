"""Admin: prompts and the use of models, to look at. The texts are for the owner alone."""

from __future__ import annotations

from django.contrib import admin

from monitor.admin.base import ReadOnly
from scheduler.models import ModelUse, Prompt


@admin.register(Prompt)
class PromptAdmin(ReadOnly):
    fields = (
        "owner", "model", "type", "priority", "status", "waits_for", "attempt", "host", "instance",
        "created_at", "assigned_at", "started_at", "first_token_at", "finished_at",
        "prompt_tokens", "completion_tokens",
    )  # fmt: skip
    list_display = ("id", "owner", "model", "type", "priority", "status", "created_at")
    list_filter = ("status", "type", "model")
    list_select_related = ("owner",)
    search_fields = ("owner__username", "model")
    ordering = ("-id",)


@admin.register(ModelUse)
class ModelUseAdmin(ReadOnly):
    list_display = (
        "hour_at", "model", "owner", "requests", "failed", "prompt_tokens", "completion_tokens",
    )  # fmt: skip
    list_filter = ("model",)
    search_fields = ("owner", "model")
    ordering = ("-hour_at", "model", "owner")
