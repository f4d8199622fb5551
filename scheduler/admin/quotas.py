"""Admin: quotas, with what people use of each limit now; what they took, to look at."""

from __future__ import annotations

from collections.abc import Callable, Collection
from copy import copy
from datetime import datetime
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString

from monitor.admin.records import ReadOnly
from scheduler.admin.records import Size
from scheduler.facts.units import size
from scheduler.limits.quotas import pages as quota_pages
from scheduler.limits.quotas import rows
from scheduler.limits.quotas.pages import QuotaFigure
from scheduler.limits.quotas.rows import Quotas
from scheduler.limits.time_windows import rows as window_rows
from scheduler.limits.time_windows.policy import describe
from scheduler.models import DailyGpuUsage, HostCapacity, Quota, TimeWindow, UsageShare

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
ALL = (*SUBJECT, *rows.FIGURES)


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
        rows.save(obj, by=request.user.get_username(), now=timezone.now())

    def delete_model(self, request: HttpRequest, obj: Quota) -> None:
        rows.remove(obj, by=request.user.get_username(), now=timezone.now())

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[Quota]) -> None:
        for quota in queryset:
            self.delete_model(request, quota)


class _Live:
    """Current use of all users, read once for a request."""

    def __init__(self, now: datetime) -> None:
        quotas = Quotas()
        # Of each quota: its users with their use.
        self._ruled: dict[int, list[tuple[str, dict[str, QuotaFigure]]]] = {}
        for line in quota_pages.share_table(now).lines:
            figures = {figure.name: figure for figure in quota_pages.figures(line)}
            figures["share_pct"] = quota_pages.share(line)
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


# Approve and decline time windows.

ASKED = ("holder", "words", "gpus", "share_pct", "effect", "first_day", "last_day", "reason",
         "asked_by", "asked_at")  # fmt: skip
STATES = (TimeWindow.State.APPROVED, TimeWindow.State.DECLINED)


@admin.register(TimeWindow)
class TimeWindowAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    """Approve or decline requested windows; they are requested on their page."""

    change_form_template = "admin/window_form.html"
    fieldsets = (
        (None, {"fields": ASKED}),
        ("Decision", {"fields": ("state", "decided_by", "decided_at", "answer")}),
    )

    list_display = ("holder", "words", "share_pct", "kept", "state", "asked_by", "decided_by")
    list_display_links = ("holder", "words")
    list_filter = ("state", "kept", "user", "group")
    list_select_related = ("user", "group")
    search_fields = ("user__username", "group__name", "reason", "answer")
    date_hierarchy = "asked_at"
    ordering = ("-asked_at",)
    actions = ("approve", "decline")

    def get_readonly_fields(self, request: HttpRequest, obj: TimeWindow | None = None) -> Any:
        decided = ("state", "decided_by", "decided_at")
        is_over = obj is not None and obj.state == TimeWindow.State.WITHDRAWN
        return (*ASKED, *decided, "answer") if is_over else (*ASKED, *decided)

    def save_model(self, request: HttpRequest, obj: TimeWindow, form: Any, change: bool) -> None:
        """Nothing is changed but by a decision."""

    def response_change(self, request: HttpRequest, obj: TimeWindow) -> HttpResponse:
        """Approve or Decline was pressed, with the answer that stands in the form."""
        for state in STATES:
            if f"_{state}" in request.POST:
                self._decide(request, [obj], state)
        return redirect(request.path)

    def has_delete_permission(self, request: HttpRequest, obj: TimeWindow | None = None) -> bool:
        """Requests and decisions are not deleted."""
        return False

    def add_view(
        self, request: HttpRequest, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        return redirect("window-ask")

    @admin.display(description="holder")
    def holder(self, row: TimeWindow) -> str:
        return window_rows.holder(row)

    @admin.display(description="when")
    def words(self, row: TimeWindow) -> str:
        return describe(window_rows.fact(row))

    @admin.display(description="effect")
    def effect(self, row: TimeWindow) -> str:
        if row.kept:
            return "The GPUs are reserved for the holder in this time."
        return "The holder uses the GPUs only in this time."

    @admin.display(description="GPUs")
    def gpus(self, row: TimeWindow) -> str:
        return window_rows.gpus(row, window_rows.gpu_names())

    @admin.action(description="Approve selected windows", permissions=["change"])
    def approve(self, request: HttpRequest, chosen: QuerySet[TimeWindow]) -> None:
        self._decide(request, list(chosen), TimeWindow.State.APPROVED)

    @admin.action(description="Decline selected windows", permissions=["change"])
    def decline(self, request: HttpRequest, chosen: QuerySet[TimeWindow]) -> None:
        self._decide(request, list(chosen), TimeWindow.State.DECLINED)

    def _decide(
        self, request: HttpRequest, chosen: Collection[TimeWindow], state: TimeWindow.State
    ) -> None:
        by, now, done = request.user.get_username(), timezone.now(), 0
        for row in chosen:
            try:
                done += window_rows.decide(row.pk, state, by, now, row.answer) is not None
            except window_rows.UnableToApprove as error:
                self.message_user(request, f"{row}: {error}", messages.ERROR)
        self.message_user(request, f"{state.label}: {done} of {len(chosen)}.", messages.SUCCESS)
