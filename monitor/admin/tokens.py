"""Admin: tokens, to make and revoke."""

from __future__ import annotations

import logging
from typing import Any

from django.contrib import admin
from django.contrib.auth.models import User
from django.db.models import ForeignKey
from django.forms import ModelChoiceField, ModelForm
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils import timezone

from monitor import access
from monitor.models import (
    ApiToken,
)

logger = logging.getLogger(__name__)


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
