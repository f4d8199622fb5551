"""Admin: approve and decline time windows."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils import timezone

from scheduler.limits.time_windows import rows as window_rows
from scheduler.limits.time_windows.policy.calendar import describe
from scheduler.models import TimeWindow

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
