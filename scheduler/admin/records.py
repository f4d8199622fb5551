"""Admin: records of hosts, batches, clean-ups, notifications, prompts and use, to look at.

Texts of prompts and addresses of users are never shown.

Admin: presets of the form to submit a job, and the registry of scripts.
"""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString

from monitor.admin.records import Forgettable, ReadOnly
from scheduler.facts.units import parse_bytes, size
from scheduler.jobs import steps
from scheduler.jobs.pages import forms as starting_points
from scheduler.models import (
    AttemptUse,
    Batch,
    BatchItem,
    BrowserNotice,
    CleaningRun,
    EngineStatus,
    EngineTask,
    ExclusiveRun,
    HostCapability,
    HostForecast,
    JobPreset,
    LockRefusal,
    ModelUse,
    ModeState,
    NotificationCursor,
    NotificationSettings,
    PlanVersion,
    Prompt,
    SavedView,
    ScriptDefinition,
    ThrottleState,
    WatchedDisk,
)
from scheduler.queue.planner import sizing
from scheduler.submission.scripts import rows


class Size(forms.CharField):
    """Bytes, as people write them: "80GiB"."""

    def prepare_value(self, value: Any) -> Any:
        return size(value) if isinstance(value, int) else value

    def to_python(self, value: Any) -> int | None:  # type: ignore[override]
        text = super().to_python(value)
        if not text:
            return None
        try:
            return parse_bytes(text)
        except ValueError as error:
            raise forms.ValidationError(str(error)) from None

    def has_changed(self, initial: Any, data: Any) -> bool:
        return bool(super().has_changed(self.prepare_value(initial), data))


class FormsOfUser(admin.ModelAdmin):  # type: ignore[type-arg]
    """Its forms have the user who saves as `person`."""

    def get_form(
        self, request: HttpRequest, obj: Any = None, change: bool = False, **kw: Any
    ) -> Any:
        form: Any = super().get_form(request, obj, change, **kw)
        # A class of this request alone: Django makes a new one each time.
        form.person = request.user
        return form


@admin.register(HostCapability)
class HostCapabilityAdmin(ReadOnly):
    list_display = ("name", "host", "active", "text", "since_at")
    list_filter = ("active", "host", "name")
    search_fields = ("name", "text", "host")
    date_hierarchy = "since_at"
    ordering = ("host", "name")


@admin.register(LockRefusal)
class LockRefusalAdmin(ReadOnly):
    list_display = ("gpu_uuid", "host", "text", "refused_at", "wait_s")
    list_filter = ("host",)
    search_fields = ("gpu_uuid", "text", "host")
    date_hierarchy = "refused_at"
    ordering = ("-refused_at",)


@admin.register(ThrottleState)
class ThrottleStateAdmin(Forgettable):
    list_display = ("host", "at")
    list_filter = ("host",)
    search_fields = ("host",)
    ordering = ("host",)


@admin.register(ModeState)
class ModeStateAdmin(Forgettable):
    list_display = ("host", "mode", "since_at", "reason", "override", "override_until")
    list_filter = ("host", "mode", "override")
    search_fields = ("host", "reason", "override_by")
    ordering = ("host",)


@admin.register(HostForecast)
class HostForecastAdmin(Forgettable):
    list_display = ("host", "at")
    search_fields = ("host",)
    ordering = ("host",)


@admin.register(PlanVersion)
class PlanVersionAdmin(ReadOnly):
    list_display = ("id", "taken")
    search_fields = ("id",)
    ordering = ("id",)


@admin.register(EngineStatus)
class EngineStatusAdmin(Forgettable):
    list_display = ("host", "engine", "version", "problem", "since_at", "answered_at")
    list_filter = ("engine",)
    search_fields = ("host", "problem")
    ordering = ("host",)


@admin.register(EngineTask)
class EngineTaskAdmin(ReadOnly):
    list_display = ("job", "engine", "ref", "word", "reason", "nodes", "created_at", "closed_at")
    list_filter = ("engine", "word", "host")
    search_fields = ("job__name", "job__owner__username", "ref", "nonce", "nodes")
    date_hierarchy = "created_at"
    ordering = ("-pk",)
    list_select_related = ("job",)


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


@admin.register(Batch)
class BatchAdmin(ReadOnly):
    list_display = ("id", "name", "owner", "state", "total_items", "completed", "failed")
    list_filter = ("state", "script")
    list_select_related = ("owner",)
    search_fields = ("name", "owner__username")
    exclude = ("request",)
    ordering = ("-id",)


@admin.register(ExclusiveRun)
class ExclusiveRunAdmin(ReadOnly):
    list_display = ("batch", "host", "step", "since", "waits_for", "stopped_by")
    list_filter = ("step", "host")
    list_select_related = ("batch",)
    search_fields = ("=batch__id",)
    ordering = ("-batch",)


@admin.register(BatchItem)
class BatchItemAdmin(ReadOnly):
    list_display = ("batch", "index", "status", "attempt", "job", "gpu_uuid")
    list_filter = ("status",)
    list_select_related = ("batch", "job")
    search_fields = ("=batch__id", "=job__id")
    ordering = ("-batch", "index")


@admin.register(WatchedDisk)
class WatchedDiskAdmin(Forgettable):
    list_display = ("path", "host", "role", "level", "used_pct", "since_at", "at")
    list_filter = ("host", "level", "role")
    search_fields = ("path", "host")
    ordering = ("host", "path")


@admin.register(CleaningRun)
class CleaningRunAdmin(ReadOnly):
    list_display = ("id", "host", "path", "dry_run", "state", "freed_bytes", "asked_by", "asked_at")
    list_filter = ("host", "state", "dry_run")
    search_fields = ("host", "path", "asked_by")
    ordering = ("-id",)


@admin.register(NotificationSettings)
class NotificationSettingsAdmin(ReadOnly):
    fields = ("user", "kinds", "by_mail", "by_browser", "channel")
    list_display = ("user", "kinds", "by_mail", "by_browser", "channel")
    list_select_related = ("user", "channel")
    search_fields = ("user__username",)
    ordering = ("user__username",)


@admin.register(BrowserNotice)
class BrowserNoticeAdmin(ReadOnly):
    """Messages to open pages of users, of the last day."""

    list_display = ("created_at", "user", "title")
    list_select_related = ("user",)
    search_fields = ("user__username", "title")
    ordering = ("-id",)


@admin.register(NotificationCursor)
class NotificationCursorAdmin(ReadOnly):
    list_display = ("__str__", "seen_event")


@admin.register(SavedView)
class SavedViewAdmin(ReadOnly):
    """Named filters of the list of jobs; users save and remove them there."""

    list_display = ("user", "name", "query")


@admin.register(AttemptUse)
class AttemptUseAdmin(ReadOnly):
    list_display = ("job", "gpu_model", "summary", "mean_pct", "p95_pct", "coverage_pct")
    list_filter = ("gpu_model", "is_sample")
    list_select_related = ("attempt__job",)
    search_fields = ("=attempt__job__id", "attempt__job__owner__username", "fingerprint")
    ordering = ("-attempt",)

    @admin.display(description="job", ordering="attempt")
    def job(self, row: AttemptUse) -> SafeString:
        return format_html("{} {}", row.attempt.job_id, row.attempt.job.name)

    @admin.display(description="use")
    def summary(self, row: AttemptUse) -> str:
        return sizing.efficiency(steps.fact(row), row.attempt.job.gpu_memory_bytes) or "unknown"


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
