"""Admin: presets of the form to submit a job, and the registry of scripts."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin

from scheduler.admin.fields import Size
from scheduler.jobs.pages import starting_points
from scheduler.models import JobPreset, ScriptDefinition
from scheduler.submission.scripts import rows


class PresetForm(forms.ModelForm):  # type: ignore[type-arg]
    def clean_values(self) -> dict[str, Any]:
        values = self.cleaned_data["values"]
        accepted = starting_points.form_values(values)
        if not isinstance(values, dict) or set(values) != set(accepted):
            unknown = ", ".join(sorted(set(values) - set(accepted))) if values else "nothing"
            raise forms.ValidationError(f"These are no fields of a preset: {unknown[:200]}.")
        return accepted


@admin.register(JobPreset)
class JobPresetAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    """A preset without a user is offered to all users."""

    form = PresetForm
    list_display = ("name", "user", "values")
    list_select_related = ("user",)
    search_fields = ("name", "user__username")
    ordering = ("name",)
    autocomplete_fields = ("user",)


class ScriptForm(forms.ModelForm):  # type: ignore[type-arg]
    gpu_memory_bytes = Size(
        label="GPU memory",
        required=False,
        help_text="Such as 20GiB; the default of its jobs. Empty: not declared.",
    )

    class Meta:
        model = ScriptDefinition
        fields = (
            "name", "enabled", "description", "argv", "worker", "schema", "gpu", "task_type",
            "item_argument", "gpu_memory_bytes", "usual_s", "time_limit_s",
        )  # fmt: skip
        labels = {
            "argv": "Program and arguments",
            "worker": "Worker for batches",
            "usual_s": "Usual run time (seconds)",
            "time_limit_s": "Time limit (seconds)",
        }
        help_texts = {
            "name": "Lower-case letters, digits and _. Users run the script by this name.",
            "description": "Users see it on the page of scripts.",
            "gpu": "no: its jobs request no GPU. optional: the script also runs without one.",
            "usual_s": "The estimate of its jobs; it improves predicted starts. Empty: unknown.",
            "time_limit_s": "The default of its jobs. Empty: no limit.",
        }

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
