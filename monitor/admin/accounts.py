"""Admin: create and revoke API tokens, and which OS account belongs to which user.

Only superusers change the OS account, and each change counts: a user's jobs run as the account, so
assigning one gives its rights.
"""

from __future__ import annotations

import logging
from typing import Any

from django.contrib import admin
from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.db.models import ForeignKey
from django.forms import ChoiceField, ModelChoiceField, ModelForm
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils import timezone

from monitor.admin.base import ReadOnly
from monitor.facts.accounts import TokenScope, scopes_of, scopes_text, up_to
from monitor.journal.rows import audit
from monitor.models import Agent, ApiToken, LoginLink, OsAccount
from monitor.owners.accounts import rows


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
        if problem := rows.name_problem(name):
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


SCOPES = [scopes_text(up_to(scope)) for scope in TokenScope]
logger = logging.getLogger(__name__)


class TokenAdminForm(ModelForm):  # type: ignore[type-arg]
    scopes = ChoiceField(
        choices=[(text, text) for text in SCOPES],
        initial=SCOPES[-1],
        required=False,
        help_text="read: see what the user sees. submit: also submit and change own jobs."
        " operate: also the rights of an operator, if the user is one.",
    )

    class Meta:
        help_texts = {
            "name": "The program or machine that uses it.",
            "expires_at": "Empty: it does not expire.",
        }

    def clean_scopes(self) -> str:
        return self.cleaned_data["scopes"] or SCOPES[-1]


@admin.register(ApiToken)
class ApiTokenAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    """A new token is shown once; deleting a token revokes it."""

    form = TokenAdminForm
    list_display = (
        "beginning", "user", "name", "scopes", "host", "created_at", "last_used_at", "expires_at",
    )  # fmt: skip
    list_filter = (("expires_at", admin.EmptyFieldListFilter), "user")
    list_select_related = ("user",)
    search_fields = ("prefix", "name", "user__username")
    date_hierarchy = "created_at"
    ordering = ("-created_at",)
    fields = ("user", "name", "scopes", "expires_at")

    @admin.display(description="token", ordering="prefix")
    def beginning(self, token: ApiToken) -> str:
        return f"{token.prefix}…"

    def get_readonly_fields(self, request: HttpRequest, obj: ApiToken | None = None) -> Any:
        if obj is None:
            return ()
        return ("user", "scopes", "beginning", "created_at", "last_used_at")

    def get_fields(self, request: HttpRequest, obj: ApiToken | None = None) -> Any:
        stored = () if obj is None else ("beginning", "created_at", "last_used_at")
        return (*self.fields, *stored)

    def get_changeform_initial_data(self, request: HttpRequest) -> dict[str, Any]:
        return {"user": request.user.pk, **super().get_changeform_initial_data(request)}

    def formfield_for_foreignkey(
        self, db_field: ForeignKey[Any, Any], request: Any, **kwargs: Any
    ) -> ModelChoiceField[Any] | None:
        """A token is its user's whole power here: others' are for superusers to make."""
        if not request.user.is_superuser:
            kwargs["queryset"] = User.objects.filter(pk=request.user.pk)
        return super().formfield_for_foreignkey(db_field, request, **kwargs)

    def has_change_permission(self, request: HttpRequest, obj: ApiToken | None = None) -> bool:
        return _may_edit(request, obj) and super().has_change_permission(request, obj)

    def has_delete_permission(self, request: HttpRequest, obj: ApiToken | None = None) -> bool:
        return _may_edit(request, obj) and super().has_delete_permission(request, obj)

    def save_model(
        self, request: HttpRequest, obj: ApiToken, form: ModelForm[ApiToken], change: bool
    ) -> None:
        if change:
            obj.save(update_fields=["name", "expires_at"])
            return
        until = obj.expires_at
        scopes = scopes_of(obj.scopes)
        row, text = rows.create_token(obj.user, timezone.now(), name=obj.name, scopes=scopes)
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


def _may_edit(request: HttpRequest, token: ApiToken | None) -> bool:
    """Only superusers change or revoke the tokens of superusers."""
    is_ordinary = token is None or not token.user.is_superuser
    return is_ordinary or request.user.is_superuser


class AgentForm(ModelForm):  # type: ignore[type-arg]
    class Meta:
        help_texts = {
            "running_jobs": "Further jobs of the agent wait.",
            "gpu_minutes": "Further jobs of the agent wait for the next day.",
            "stopped_at": "Requests of the agent are refused from then on. Empty: it may submit.",
        }


@admin.register(Agent)
class AgentAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    """Limits of agents. Their users make them on the page of the account."""

    form = AgentForm
    list_display = (
        "name", "user", "running_jobs", "gpu_minutes", "created_at", "stopped_at",
    )  # fmt: skip
    list_select_related = ("user",)
    search_fields = ("name", "user__username")
    date_hierarchy = "created_at"
    ordering = ("user__username", "name")
    fields = ("user", "name", "running_jobs", "gpu_minutes", "created_at", "stopped_at")
    readonly_fields = ("user", "name", "created_at")

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False


@admin.register(LoginLink)
class LoginLinkAdmin(ReadOnly):
    """Links that were not used yet; they expire within a minute."""

    list_display = ("user", "expires_at")
    list_select_related = ("user",)
    search_fields = ("user__username",)
    date_hierarchy = "expires_at"
    ordering = ("-expires_at",)
    fields = ("user", "expires_at")
