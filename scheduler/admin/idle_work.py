"""Admin: templates of idle work, and their choices."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin
from django.contrib.auth.models import User
from django.http import HttpRequest
from django.utils import timezone

from monitor.admin.records import ReadOnly
from scheduler.admin.records import FormsOfUser
from scheduler.models import IdleChoice, IdleTemplate
from scheduler.submission.idle_work import step


class IdleTemplateForm(forms.ModelForm):  # type: ignore[type-arg]
    person: User

    class Meta:
        model = IdleTemplate
        fields = (
            "name",
            "enabled",
            "account",
            "request",
            "weight",
            "most_running",
            "most_per_gpu",
            "most_per_day",
        )
        help_texts = {
            "name": "Lower-case letters, digits, _ and -.",
            "enabled": "A disabled template starts no jobs; its running jobs continue.",
            "weight": "Factor of its chance when several templates may run.",
            "most_per_day": "Empty: no limit.",
        }

    def clean(self) -> dict[str, Any] | None:
        cleaned = super().clean()
        if cleaned is not None and not self.errors:
            row = IdleTemplate(pk=self.instance.pk, **cleaned)
            for refusal in step.problems(row, self.person, timezone.now()):
                field = refusal.field if refusal.field in self.fields else "request"
                self.add_error(field, f"{refusal.field}: {refusal.text}")
        return cleaned


@admin.register(IdleTemplate)
class IdleTemplateAdmin(FormsOfUser):
    """Every change is audited; what REST refuses is refused here too."""

    form = IdleTemplateForm
    list_display = ("name", "account", "weight", "most_running", "most_per_day", "enabled")
    list_filter = ("enabled",)
    list_select_related = ("account",)
    search_fields = ("name", "account__username")
    ordering = ("name",)

    def save_model(
        self, request: HttpRequest, obj: IdleTemplate, form: IdleTemplateForm, change: bool
    ) -> None:
        if not change:
            obj.created_by = form.person.get_username()
        super().save_model(request, obj, form, change)
        word = "changed" if change else "added"
        step.note(obj, form.person, timezone.now(), f"IDLE_TEMPLATE_{word.upper()}", word)


@admin.register(IdleChoice)
class IdleChoiceAdmin(ReadOnly):
    list_display = ("at", "template", "host", "gpu_uuid", "job", "seed")
    list_filter = ("template", "host")
    search_fields = ("template", "gpu_uuid")
    ordering = ("-id",)
