"""Admin: the registry of scripts."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin

from scheduler.models import ScriptDefinition
from scheduler.scripts import rows


class ScriptForm(forms.ModelForm):  # type: ignore[type-arg]
    def clean(self) -> dict[str, Any] | None:
        cleaned = super().clean()
        if cleaned is not None and not self.errors:
            rows.check(ScriptDefinition(**cleaned))
        return cleaned


@admin.register(ScriptDefinition)
class ScriptAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    form = ScriptForm
    list_display = ("name", "task_type", "gpu", "usual_s", "time_limit_s", "enabled")
    list_filter = ("task_type", "gpu", "enabled")
    search_fields = ("name", "description")
    ordering = ("name",)
