"""Admin: users and groups. Only superusers may change accounts and permissions.

A superuser can run jobs as other accounts, so a permission on users must never lead there.
"""

from __future__ import annotations

from typing import Any

from axes.admin import AccessAttemptAdmin, AccessFailureLogAdmin, AccessLogAdmin
from axes.models import AccessAttempt, AccessBase, AccessFailureLog, AccessLog
from django.apps import apps
from django.contrib import admin
from django.contrib.auth.admin import GroupAdmin, UserAdmin
from django.contrib.auth.models import Group, User
from django.core.exceptions import PermissionDenied
from django.db.models import Model
from django.http import HttpRequest, HttpResponse
from django.utils import timezone

from gpucoord_site.models import ExternalLogin
from monitor.admin.records import Forgettable
from monitor.models import LoginLink
from reports.models import ReportSubscription
from scheduler.models import (
    Batch,
    IdleTemplate,
    Job,
    NotificationCursor,
    NotificationSettings,
    Prompt,
    Quota,
    SavedView,
    SubmissionKey,
    TimeWindow,
)

RIGHTS = ("is_staff", "is_superuser", "groups", "user_permissions")
# Fields of a user that other staff members see. Without the password hash.
STAFF_FIELDS = (
    (None, {"fields": ("username",)}),
    ("Personal info", {"fields": ("first_name", "last_name", "email")}),
    ("Permissions", {"fields": ("is_active", *RIGHTS)}),
    ("Important dates", {"fields": ("last_login", "date_joined")}),
)
STAFF_READ_ONLY = ("username", *RIGHTS, "last_login", "date_joined")
# Records of work and of decisions, with the field that names the user. They keep the user.
RECORDS: tuple[tuple[type[Model], str], ...] = (
    (Job, "owner"),
    (Batch, "owner"),
    (Prompt, "owner"),
    (TimeWindow, "user"),
    (Quota, "user"),
    (IdleTemplate, "account"),
)
# Read-only in the admin, and deleted with their user.
PERSONAL: tuple[type[Model], ...] = (
    SavedView,
    NotificationSettings,
    NotificationCursor,
    ReportSubscription,
    SubmissionKey,
    LoginLink,
)


class Users(UserAdmin):  # type: ignore[type-arg]
    """Staff may edit ordinary users; names, rights and passwords are for superusers."""

    delete_confirmation_template = "admin/user_delete.html"
    delete_selected_confirmation_template = "admin/users_delete.html"

    def get_deleted_objects(self, objs: Any, request: HttpRequest) -> Any:
        """A user with records is protected by them; the lines say which, and how many."""
        protected = [f"{user}: {records}" for user in objs if (records := _records(user))]
        if protected:
            return [], {}, set(), protected
        listed, counts, lacking, protected = super().get_deleted_objects(objs, request)
        personal = {model._meta.verbose_name for model in PERSONAL}
        return listed, counts, lacking - personal, protected

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


class ForSuperusers(admin.ModelAdmin):  # type: ignore[type-arg]
    """Only superusers change the rows."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        return _is_superuser(request)

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return _is_superuser(request)

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return _is_superuser(request)


class Groups(ForSuperusers, GroupAdmin):
    """A group grants permissions, so only superusers edit it."""


class ExternalLogins(ForSuperusers):
    """Links a person of LDAP or of the single sign-on to a user. Only superusers change it."""

    list_display = ("user", "provider", "subject")
    list_select_related = ("user",)
    list_filter = ("provider",)
    search_fields = ("user__username", "subject")
    ordering = ("user__username",)
    actions = None


class AccessAttempts(Forgettable, AccessAttemptAdmin):  # type: ignore[misc]
    """Deleting a row lets the user try to log in again."""

    fieldsets = (
        (None, {"fields": ("attempt_time", "username", "path_info", "failures_since_start")}),
        ("Form data", {"fields": ("get_data", "post_data")}),
        ("Client", {"fields": ("user_agent", "ip_address", "http_accept")}),
    )


class AccessFailures(Forgettable, AccessFailureLogAdmin):  # type: ignore[misc]
    fieldsets = (
        (None, {"fields": ("attempt_time", "username", "path_info", "locked_out")}),
        ("Client", {"fields": ("user_agent", "ip_address", "http_accept")}),
    )


class AccessLogs(Forgettable, AccessLogAdmin):  # type: ignore[misc]
    fieldsets = (
        (None, {"fields": ("attempt_time", "logout_time", "username", "path_info")}),
        ("Client", {"fields": ("user_agent", "ip_address", "http_accept")}),
    )


PAGES: dict[type[Model], type[admin.ModelAdmin[Any]]] = {
    User: Users,
    Group: Groups,
    AccessAttempt: AccessAttempts,
    AccessFailureLog: AccessFailures,
    AccessLog: AccessLogs,
}


def install() -> None:
    """Replace the pages of Django and django-axes, and remove those of the task queue.

    A row of the task queue names any function to call, with the rights of the service.
    """
    for model, page in PAGES.items():
        admin.site.unregister(model)
        admin.site.register(model, page)
    for logged in (AccessAttempt, AccessFailureLog, AccessLog):
        # The titles of django-axes have a time in UTC with microseconds.
        logged.add_to_class("__str__", _login_title)
    admin.site.register(ExternalLogin, ExternalLogins)
    for queued in apps.get_app_config("django_q").get_models():
        if admin.site.is_registered(queued):
            admin.site.unregister(queued)


def _is_superuser(request: HttpRequest) -> bool:
    return bool(request.user.is_active and request.user.is_superuser)


def _login_title(row: AccessBase) -> str:
    at = timezone.localtime(row.attempt_time)
    return f"{row.username or 'unknown user'}, {at.day} {at:%b %Y %H:%M:%S %Z}"


def _records(user: User) -> str:
    """The records that keep the user, such as "3 jobs, 1 quota"; empty if there are none."""
    counts = ((model, model._default_manager.filter(**{by: user}).count()) for model, by in RECORDS)
    return ", ".join(
        f"{count} {model._meta.verbose_name if count == 1 else model._meta.verbose_name_plural}"
        for model, count in counts
        if count
    )


def _may_edit(request: HttpRequest, user: User | None) -> bool:
    is_ordinary = user is None or not (user.is_staff or user.is_superuser)
    return is_ordinary or _is_superuser(request)
