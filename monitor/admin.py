"""Admin: what the monitor saw and wrote, to look at; tokens, to make and revoke."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import Any

from django.contrib import admin
from django.contrib.auth.models import User
from django.db.models import ForeignKey
from django.forms import ModelChoiceField, ModelForm
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils import timezone

from monitor import access, formats
from monitor.models import (
    ApiToken,
    Chore,
    Claim,
    Constraint,
    Event,
    Gpu,
    GpuHour,
    GpuMinute,
    HostHour,
    HostMinute,
    HostSample,
    LatestSnapshot,
    Lease,
    ProcessHour,
    ProcessMinute,
    ProcessUse,
    Sample,
    Tally,
)

logger = logging.getLogger(__name__)


class ReadOnly(admin.ModelAdmin):  # type: ignore[type-arg]
    """Rows that gpucoord writes itself: a hand edit would be overwritten, or break something."""

    show_full_result_count = False

    def has_add_permission(self, request: HttpRequest, *_: object) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


class Forgettable(ReadOnly):
    """Rows that may be deleted: they come back if what they tell of does."""

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return request.user.has_perm(f"{self.opts.app_label}.delete_{self.opts.model_name}")


@admin.register(Gpu)
class GpuAdmin(Forgettable):
    list_display = ("index", "host", "name", "state", "memory", "uuid", "simulated", "last_seen_at")
    list_display_links = ("index", "uuid")
    list_filter = ("host", "state", "simulated")
    search_fields = ("uuid", "name", "host", "pci_id")
    date_hierarchy = "first_seen_at"
    ordering = ("host", "index")

    @admin.display(description="memory", ordering="memory_total_bytes")
    def memory(self, gpu: Gpu) -> str:
        return formats.gib(gpu.memory_total_bytes)


@admin.register(Event)
class EventAdmin(ReadOnly):
    list_display = ("at", "severity", "kind", "text", "owner", "host")
    list_filter = ("severity", "kind", "host")
    search_fields = ("text", "owner", "job_ref", "gpu_uuid", "kind")
    date_hierarchy = "at"
    ordering = ("-at", "-id")


@admin.register(Claim)
class ClaimAdmin(ReadOnly):
    list_display = (
        "job_ref",
        "owner",
        "gpu_uuid",
        "host",
        "memory",
        "exclusive",
        "from_at",
        "until_at",
    )
    list_filter = (("until_at", admin.EmptyFieldListFilter), "exclusive", "host")
    search_fields = ("job_ref", "owner", "gpu_uuid")
    date_hierarchy = "from_at"
    ordering = ("-id",)

    @admin.display(description="memory", ordering="memory_bytes")
    def memory(self, claim: Claim) -> str:
        return formats.gib(claim.memory_bytes)


@admin.register(Constraint)
class ConstraintAdmin(ReadOnly):
    list_display = ("text", "kind", "subject", "host", "from_at", "until_at")
    list_filter = (("until_at", admin.EmptyFieldListFilter), "kind", "host")
    search_fields = ("text", "kind", "subject", "host")
    date_hierarchy = "from_at"
    ordering = ("-id",)


@admin.register(Lease)
class LeaseAdmin(ReadOnly):
    list_display = (
        "name",
        "pid",
        "epoch",
        "ticks",
        "last_tick_at",
        "lateness_p99_ms",
    )
    list_filter = ("loop", "host", ("last_error", admin.EmptyFieldListFilter))
    search_fields = ("name", "last_error")
    date_hierarchy = "acquired_at"
    ordering = ("name",)


@admin.register(Chore)
class ChoreAdmin(ReadOnly):
    list_display = ("name", "queued_at", "done_at", "result")
    search_fields = ("name", "result")
    date_hierarchy = "queued_at"
    ordering = ("name",)


@admin.register(Tally)
class TallyAdmin(ReadOnly):
    list_display = ("name", "subject", "host", "value")
    list_filter = ("name", "host")
    search_fields = ("name", "subject")
    ordering = ("name", "host", "subject")


@admin.register(LatestSnapshot)
class LatestSnapshotAdmin(Forgettable):
    list_display = ("host", "seq", "at")
    list_filter = ("host",)
    search_fields = ("host",)
    date_hierarchy = "at"
    ordering = ("host",)


class Seconds(ReadOnly):
    """Rows by the second: there are many, so nothing here counts them all."""

    @admin.display(description="at", ordering="t")
    def at(self, row: Any) -> datetime:
        return datetime.fromtimestamp(row.t, UTC)


@admin.register(Sample)
class SampleAdmin(Seconds):
    list_display = ("at", "gpu", "utilization_pct", "memory", "power_w", "temperature_c")
    list_filter = ("gpu__host", "gpu__index")
    list_select_related = ("gpu",)
    search_fields = ("gpu__uuid", "gpu__host")
    ordering = ("-id",)

    @admin.display(description="memory used", ordering="memory_used_bytes")
    def memory(self, sample: Sample) -> str:
        return formats.gib(sample.memory_used_bytes)


@admin.register(HostSample)
class HostSampleAdmin(Seconds):
    list_display = ("at", "host", "cpu_pct", "load_1", "memory", "io_pressure_pct")
    list_filter = ("host",)
    search_fields = ("host",)
    ordering = ("-id",)

    @admin.display(description="memory used", ordering="memory_used_bytes")
    def memory(self, sample: HostSample) -> str:
        return formats.gib(sample.memory_used_bytes)


@admin.register(GpuMinute, GpuHour)
class GpuRollupAdmin(Seconds):
    list_display = ("at", "gpu", "seen_s", "utilization_pct_s", "energy_j", "temperature_max_c")
    list_filter = ("gpu__host", "gpu__index")
    list_select_related = ("gpu",)
    search_fields = ("gpu__uuid", "gpu__host")
    ordering = ("-id",)


@admin.register(HostMinute, HostHour)
class HostRollupAdmin(Seconds):
    list_display = ("at", "host", "seen_s", "cpu_pct_s", "cpu_max_pct", "load_max")
    list_filter = ("host",)
    search_fields = ("host",)
    ordering = ("-id",)


@admin.register(ProcessUse)
class ProcessUseAdmin(ReadOnly):
    list_display = ("program", "user", "pid", "gpu", "first_seen_at", "sm_s", "known_s", "source")
    list_filter = ("host", "source", "gpu__index")
    list_select_related = ("gpu",)
    search_fields = ("program", "user", "job_owner", "job_ref", "pid", "gpu__uuid")
    date_hierarchy = "first_seen_at"
    ordering = ("-id",)


@admin.register(ProcessMinute, ProcessHour)
class ProcessRollupAdmin(Seconds):
    list_display = ("at", "use", "sm_s", "held_s", "known_s", "joules")
    list_select_related = ("use",)
    search_fields = ("use__user", "use__program", "use__gpu__uuid")
    ordering = ("-id",)


@admin.register(ApiToken)
class ApiTokenAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    """Made here, the token is shown once; deleting it revokes it."""

    list_display = ("beginning", "user", "name", "created_at", "last_used_at", "expires_at")
    list_filter = (("expires_at", admin.EmptyFieldListFilter), "user")
    list_select_related = ("user",)
    search_fields = ("prefix", "name", "user__username")
    date_hierarchy = "created_at"
    ordering = ("-created_at",)
    fields = ("user", "name", "expires_at")

    @admin.display(description="token", ordering="prefix")
    def beginning(self, token: ApiToken) -> str:
        return f"{token.prefix}…"

    def get_readonly_fields(self, request: HttpRequest, obj: ApiToken | None = None) -> Any:
        return () if obj is None else ("user", "beginning", "created_at", "last_used_at")

    def get_fields(self, request: HttpRequest, obj: ApiToken | None = None) -> Any:
        made = () if obj is None else ("beginning", "created_at", "last_used_at")
        return (*self.fields, *made)

    def get_changeform_initial_data(self, request: HttpRequest) -> dict[str, Any]:
        return {"user": request.user.pk, **super().get_changeform_initial_data(request)}

    def formfield_for_foreignkey(
        self, db_field: ForeignKey[Any, Any], request: Any, **kwargs: Any
    ) -> ModelChoiceField[Any] | None:
        """A token is its user's whole power here: others' are for superusers to make."""
        if not request.user.is_superuser:
            kwargs["queryset"] = User.objects.filter(pk=request.user.pk)
        return super().formfield_for_foreignkey(db_field, request, **kwargs)

    def save_model(
        self, request: HttpRequest, obj: ApiToken, form: ModelForm[ApiToken], change: bool
    ) -> None:
        if change:
            obj.save(update_fields=["name", "expires_at"])
            return
        until = obj.expires_at
        row, text = access.create_token(obj.user, timezone.now(), name=obj.name)
        row.expires_at = until
        row.save(update_fields=["expires_at"])
        obj.__dict__.update(row.__dict__)
        request.made_token = text  # type: ignore[attr-defined]
        owner, by = row.user.get_username(), request.user.get_username()
        about = {"kind": "TOKEN_MADE", "owner": owner, "by": by, "number": row.pk}
        logger.info("%s made a token of %s", by, owner, extra=about)

    def response_add(
        self, request: HttpRequest, obj: ApiToken, post_url_continue: str | None = None
    ) -> HttpResponse:
        """Show it now: not by a message, which would travel in a cookie."""
        context = {
            **self.admin_site.each_context(request),
            "title": "Token made",
            "token": obj,
            "text": request.made_token,  # type: ignore[attr-defined]
            "opts": self.opts,
        }
        response = TemplateResponse(request, "admin/token_made.html", context)
        response["Cache-Control"] = "no-store"
        return response
