"""Admin: users and groups. Only superusers may change accounts and permissions.

A superuser can run jobs as other accounts, so a permission on users must never lead there.
"""

from __future__ import annotations

from typing import Any

from django.apps import apps
from django.contrib import admin
from django.contrib.auth.admin import GroupAdmin, UserAdmin
from django.contrib.auth.models import Group, User
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse

from gpucoord_site.models import ExternalLogin

RIGHTS = ("is_staff", "is_superuser", "groups", "user_permissions")
# Fields of a user that other staff members see. Without the password hash.
STAFF_FIELDS = (
    (None, {"fields": ("username",)}),
    ("Personal info", {"fields": ("first_name", "last_name", "email")}),
    ("Permissions", {"fields": ("is_active", *RIGHTS)}),
    ("Important dates", {"fields": ("last_login", "date_joined")}),
)
STAFF_READ_ONLY = ("username", *RIGHTS, "last_login", "date_joined")


class Users(UserAdmin):  # type: ignore[type-arg]
    """Staff may edit ordinary users; names, rights and passwords are for superusers."""

    def get_fieldsets(self, request: HttpRequest, obj: User | None = None) -> Any:
        is_restricted = obj is not None and not _is_superuser(request)
        return STAFF_FIELDS if is_restricted else super().get_fieldsets(request, obj)

    def get_readonly_fields(self, request: HttpRequest, obj: User | None = None) -> Any:
        return (
            super().get_readonly_fields(request, obj) if _is_superuser(request) else STAFF_READ_ONLY
        )

    def has_add_permission(self, request: HttpRequest) -> bool:
        # A new user has the rights of the OS account with the same name.
        return _is_superuser(request) and super().has_add_permission(request)

    def has_change_permission(self, request: HttpRequest, obj: User | None = None) -> bool:
        return _may_edit(request, obj) and super().has_change_permission(request, obj)

    def has_delete_permission(self, request: HttpRequest, obj: User | None = None) -> bool:
        return _may_edit(request, obj) and super().has_delete_permission(request, obj)

    def user_change_password(
        self, request: HttpRequest, id: str, form_url: str = ""
    ) -> HttpResponse:
        if not _is_superuser(request):
            raise PermissionDenied
        return super().user_change_password(request, id, form_url)


class Groups(GroupAdmin):
    """A group grants permissions, so only superusers edit it."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        return _is_superuser(request)

    def has_change_permission(self, request: HttpRequest, obj: Group | None = None) -> bool:
        return _is_superuser(request)

    def has_delete_permission(self, request: HttpRequest, obj: Group | None = None) -> bool:
        return _is_superuser(request)


class ExternalLogins(admin.ModelAdmin):  # type: ignore[type-arg]
    """Links a person of LDAP or of the single sign-on to a user. Only superusers change it."""

    list_display = ("user", "provider", "subject")
    list_select_related = ("user",)
    list_filter = ("provider",)
    search_fields = ("user__username", "subject")
    ordering = ("user__username",)
    actions = None

    def has_add_permission(self, request: HttpRequest) -> bool:
        return _is_superuser(request)

    def has_change_permission(self, request: HttpRequest, obj: ExternalLogin | None = None) -> bool:
        return _is_superuser(request)

    def has_delete_permission(self, request: HttpRequest, obj: ExternalLogin | None = None) -> bool:
        return _is_superuser(request)


def install() -> None:
    """Replace Django's pages of users and groups, and remove those of the task queue.

    A row of the task queue names any function to call, with the rights of the service.
    """
    for model, page in ((User, Users), (Group, Groups)):
        admin.site.unregister(model)
        admin.site.register(model, page)
    admin.site.register(ExternalLogin, ExternalLogins)
    for queued in apps.get_app_config("django_q").get_models():
        if admin.site.is_registered(queued):
            admin.site.unregister(queued)


def _is_superuser(request: HttpRequest) -> bool:
    return bool(request.user.is_active and request.user.is_superuser)


def _may_edit(request: HttpRequest, user: User | None) -> bool:
    is_ordinary = user is None or not (user.is_staff or user.is_superuser)
    return is_ordinary or _is_superuser(request)
