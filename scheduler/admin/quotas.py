"""Admin: quotas, with what people use of each limit now; what they took, to look at."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from datetime import datetime
from typing import Any

from django import forms
from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString

from monitor.admin.base import ReadOnly
from scheduler.admin.fields import Size
from scheduler.facts.units import size
from scheduler.limits.quotas import actions
from scheduler.limits.quotas.pages import table as quota_figures
from scheduler.limits.quotas.pages import table as share_table
from scheduler.limits.quotas.pages.table import QuotaFigure
from scheduler.limits.quotas.rows import Quotas
from scheduler.models import DailyGpuUsage, HostCapacity, Quota, UsageShare

FIGURES = ("share_pct", "gpu_minutes", "gpus", "jobs", "memory_bytes", "queued")
# Limits that are not plain numbers.
WORDED: dict[str, Callable[[Any], str]] = {
    "memory_bytes": size,
    "share_pct": lambda limit: f"{limit:g} %",
}
SUBJECT = ("user", "group")
DAILY = ("gpu_minutes", "prompts", "prompt_tokens")
ABOUT = (
    "The quota of a user, of each member of a group, or (with neither) of all other users."
    " The quota of a user replaces the quotas of the user's groups, and both replace the default."
    " With several groups, the most generous value of each limit applies. An empty field means no"
    " limit; for waiting jobs and the highest priority, it means the value of the policy “quotas”."
)
HELP = {
    "share_pct": "Percentage of all GPUs while other users wait. It is a weight, not a limit.",
    "share_is_limit": "The user never gets more than the share, even if GPUs are free.",
    "reserved_pct": "Percentage of the share that jobs of priority 4 and 5 take first.",
    "gpu_share_pct": "Percentage of the time of a shared GPU: default and maximum for its jobs.",
    "gpus": "Further jobs wait until jobs of the user end.",
    "jobs": "Further jobs wait until jobs of the user end.",
    "queued": "Further submissions are rejected. Each job of an array counts.",
    "priority": "Higher priorities are rejected.",
    "gpu_minutes": "Further jobs wait until midnight of the server's time zone.",
    "prompts": "Prompts and requests to models. Further ones are refused until midnight.",
    "prompt_tokens": "Tokens of prompts and answers. Further prompts are refused until midnight.",
}
ALL = (*SUBJECT, *actions.LIMITS)


class QuotaForm(forms.ModelForm):  # type: ignore[type-arg]
    memory_bytes = Size(label="GPU memory at a time", required=False, help_text="Such as 80GiB.")

    class Meta:
        model = Quota
        fields = ALL
        help_texts = HELP


@admin.register(Quota)
class QuotaAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    """Shows each limit with its highest current use; every change is audited."""

    form = QuotaForm
    list_filter = (("user", admin.EmptyFieldListFilter), ("group", admin.EmptyFieldListFilter))
    list_select_related = ("user", "group")
    search_fields = ("user__username", "group__name")
    autocomplete_fields = ("user", "group")
    ordering = ("user__username", "group__name")
    fieldsets = (
        (None, {"fields": SUBJECT, "description": ABOUT}),
        ("The share", {"fields": ("share_pct", "share_is_limit", "reserved_pct", "gpu_share_pct")}),
        ("At a time", {"fields": ("gpus", "memory_bytes", "jobs", "queued", "priority")}),
        ("In a day", {"fields": DAILY}),
        ("Rights", {"fields": ("exclusive_batches",)}),
    )

    def get_list_display(self, request: HttpRequest) -> Any:
        live = _Live.of(request)
        return ("for_whom", *(_column(name, live) for name in FIGURES), "priority")

    def get_readonly_fields(self, request: HttpRequest, obj: Quota | None = None) -> Any:
        """The user or group cannot be changed, because the audit log names it."""
        return SUBJECT if obj is not None else ()

    def get_form(
        self, request: HttpRequest, obj: Quota | None = None, change: bool = False, **kwargs: Any
    ) -> Any:
        """Show the current use below each limit."""
        form_class = super().get_form(request, obj, change, **kwargs)
        live = _Live.of(request)
        if obj is not None:
            for name in form_class.base_fields.keys() & set(FIGURES):
                # A copy: a field that the form declares is the same one at each request.
                field = form_class.base_fields[name] = copy(form_class.base_fields[name])
                field.help_text = f"{field.help_text} Now: {live.reported(obj, name)}.".strip()
        return form_class

    @admin.display(description="for", ordering="user__username")
    def for_whom(self, quota: Quota) -> str:
        return quota.subject

    def save_model(
        self, request: HttpRequest, obj: Quota, form: forms.ModelForm[Quota], change: bool
    ) -> None:
        actions.save(obj, by=request.user.get_username(), now=timezone.now())

    def delete_model(self, request: HttpRequest, obj: Quota) -> None:
        actions.remove(obj, by=request.user.get_username(), now=timezone.now())

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[Quota]) -> None:
        for quota in queryset:
            self.delete_model(request, quota)


class _Live:
    """Current use of all users, read once for a request."""

    def __init__(self, now: datetime) -> None:
        quotas = Quotas()
        # Of each quota: its users with their use.
        self._ruled: dict[int, list[tuple[str, dict[str, QuotaFigure]]]] = {}
        for line in share_table.table(now).lines:
            figures = {figure.name: figure for figure in quota_figures.figures(line)}
            figures["share_pct"] = quota_figures.share(line)
            for quota in quotas.rows(line.name):
                self._ruled.setdefault(quota.pk, []).append((line.name, figures))

    @classmethod
    def of(cls, request: HttpRequest) -> _Live:
        live: _Live | None = getattr(request, "live_quotas", None)
        if live is None:
            live = request.live_quotas = cls(timezone.now())  # type: ignore[attr-defined]
        return live

    def reported(self, quota: Quota, name: str) -> str:
        """The user of this quota with the highest use."""
        ruled = self._ruled.get(quota.pk)
        if not ruled:
            return "no user yet"
        person, figures = max(ruled, key=lambda pair: pair[1][name].used)
        used = figures[name].used_text
        return used if quota.user_id else f"{used} by {person}, the most"


def _column(name: str, live: _Live) -> Callable[[Quota], SafeString]:
    """A limit and its current use."""

    @admin.display(description=Quota.words(name), ordering=name)
    def column(quota: Quota) -> SafeString:
        limit = getattr(quota, name)
        unset = "the policy's" if name == "queued" else "no limit"
        shown = unset if limit is None else f"{limit:.12g}"
        if limit is None and name == "share_pct":
            shown = "no share"
        elif limit is not None and name in WORDED:
            shown = WORDED[name](limit)
        return format_html("<strong>{}</strong><br>now {}", shown, live.reported(quota, name))

    column.__name__ = name
    return column


@admin.register(HostCapacity)
class HostCapacityAdmin(ReadOnly):
    list_display = ("host", "count", "at")
    search_fields = ("host",)
    ordering = ("host",)

    @admin.display(description="GPUs")
    def count(self, row: HostCapacity) -> int:
        return len(row.gpu_uuids)


@admin.register(UsageShare)
class UsageShareAdmin(ReadOnly):
    list_display = ("owner", "host", "usage", "charge", "outside")
    list_filter = ("host",)
    search_fields = ("owner",)
    ordering = ("-usage",)


@admin.register(DailyGpuUsage)
class DailyGpuUsageAdmin(ReadOnly):
    list_display = ("owner", "from_at", "job_minutes", "outside_minutes", "host")
    list_filter = ("host",)
    search_fields = ("owner",)
    date_hierarchy = "from_at"
    ordering = ("-from_at", "owner")

    @admin.display(description="minutes by jobs", ordering="job_s")
    def job_minutes(self, row: DailyGpuUsage) -> str:
        return f"{row.job_s / 60:.1f}"

    @admin.display(description="minutes by other processes", ordering="outside_s")
    def outside_minutes(self, row: DailyGpuUsage) -> str:
        return f"{row.outside_s / 60:.1f}"
