"""Admin: schedules of reports with their recipients and retention; stored reports."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin
from django.core.exceptions import ValidationError
from django.http import HttpRequest
from django.utils import timezone

from monitor.admin.records import Forgettable
from monitor.journal.rows import audit
from reports.figures.facts import ReportRefused
from reports.figures.policy import periods
from reports.models import ReportSchedule, ReportSubscription, StoredReport


class ScheduleForm(forms.ModelForm):  # type: ignore[type-arg]
    class Meta:
        model = ReportSchedule
        fields = ["name", "enabled", "every", "hour", "scope", "channels", "keep_days"]

    def clean_scope(self) -> str:
        text: str = self.cleaned_data["scope"]
        try:
            periods.scope(text)
        except ReportRefused as error:
            raise ValidationError(error.text) from error
        return text


@admin.register(ReportSchedule)
class ReportScheduleAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    form = ScheduleForm
    list_display = ["name", "enabled", "every", "hour", "scope", "reported_until", "problem"]
    readonly_fields = ["reported_until", "failures", "retry_at", "problem"]
    filter_horizontal = ["channels"]

    def save_model(
        self, request: HttpRequest, obj: ReportSchedule, form: Any, change: bool
    ) -> None:
        """A changed schedule is tried again at once."""
        obj.failures, obj.retry_at, obj.problem = 0, None, ""
        super().save_model(request, obj, form, change)
        by = str(request.user)
        text = f"{by} {'changed' if change else 'added'} the report schedule {obj.name}"
        now = timezone.now()
        audit.note("REPORT_SCHEDULE_CHANGED", text, by=by, now=now, subject=f"schedule {obj.pk}")


@admin.register(ReportSubscription)
class ReportSubscriptionAdmin(Forgettable):
    list_display = ["user", "is_on", "since_at", "reported_until", "problem"]


@admin.register(StoredReport)
class StoredReportAdmin(Forgettable):
    list_display = ["title", "kind", "scope", "made_at", "made_by", "keep_until"]
    list_filter = ["kind"]
    search_fields = ["title", "scope", "viewer"]
