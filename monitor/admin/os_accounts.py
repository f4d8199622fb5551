"""Admin: which OS account belongs to which user. Only superusers change it, and each change counts.

A user's jobs run as the account, so assigning one gives its rights.
"""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.core.exceptions import ValidationError
from django.forms import ModelForm
from django.http import HttpRequest
from django.utils import timezone

from monitor.journal.rows import audit
from monitor.models import OsAccount
from monitor.owners.accounts.rows import os_accounts


class OsAccountForm(ModelForm):  # type: ignore[type-arg]
    class Meta:
        model = OsAccount
        fields = ("user", "name")
        help_texts = {
            "user": "Jobs of this user run as the account, and its processes are shown as theirs.",
            "name": "Its name on the GPU servers, as `id -un` prints it.",
        }

    def clean_name(self) -> str:
        name: str = self.cleaned_data["name"].strip()
        if problem := os_accounts.name_problem(name):
            raise ValidationError(problem)
        return name


@admin.register(OsAccount)
class OsAccountAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    form = OsAccountForm
    list_display = ("name", "user", "origin", "created_at")
    list_select_related = ("user",)
    search_fields = ("name", "user__username")
    date_hierarchy = "created_at"
    ordering = ("name",)
    actions = None

    def has_add_permission(self, request: HttpRequest) -> bool:
        return _is_superuser(request)

    def has_change_permission(self, request: HttpRequest, obj: OsAccount | None = None) -> bool:
        return _is_superuser(request)

    def has_delete_permission(self, request: HttpRequest, obj: OsAccount | None = None) -> bool:
        return _is_superuser(request)

    def save_model(
        self, request: HttpRequest, obj: OsAccount, form: ModelForm[OsAccount], change: bool
    ) -> None:
        before = _pair(OsAccount.objects.filter(pk=obj.pk).select_related("user").first())
        if not change:
            obj.created_at = timezone.now()
        by = request.user.get_username()
        obj.origin = f"assigned by {by}"[:80]
        super().save_model(request, obj, form, change)
        _note(f"{by} assigned the OS account {obj.name} to {obj.user}", by, before, _pair(obj))

    def delete_model(self, request: HttpRequest, obj: OsAccount) -> None:
        by, before = request.user.get_username(), _pair(obj)
        super().delete_model(request, obj)
        _note(f"{by} removed the OS account {obj.name} of {obj.user}", by, before, None)


def _note(text: str, by: str, before: object, after: object) -> None:
    names = before or after
    subject = f"user {names['user']}" if isinstance(names, dict) else ""
    audit.note("OS_ACCOUNT_CHANGED", text, by=by, now=timezone.now(), subject=subject,
               before=before, after=after)  # fmt: skip


def _pair(row: OsAccount | None) -> dict[str, Any] | None:
    return None if row is None else {"user": row.user.get_username(), "account": row.name}


def _is_superuser(request: HttpRequest) -> bool:
    return bool(request.user.is_active and getattr(request.user, "is_superuser", False))
