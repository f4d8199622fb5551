"""Admin: titles, access, and the order of its index page."""

from __future__ import annotations

from collections.abc import Callable
from functools import update_wrapper
from typing import Any

from django.contrib import admin
from django.contrib.auth.decorators import login_not_required
from django.contrib.auth.views import redirect_to_login
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.utils.decorators import method_decorator

# The models that operators edit, by topic. The others follow, by app.
TOPICS = {
    "Users": ("User", "Group", "ApiToken"),
    "Quotas and time windows": ("Quota", "TimeWindow", "Exemption"),
    "Logins": ("AccessAttempt", "AccessFailureLog", "AccessLog"),
    "Thresholds and alerts": ("PolicyValues", "Channel"),
    "Jobs, incidents and history": (
        "Job",
        "Incident",
        "Event",
        "Message",
        "Response",
        "GpuClosure",
        "AuditEntry",
    ),
}


class Site(admin.AdminSite):
    index_title = "Administration"
    site_header = "gpucoord administration"
    site_title = "gpucoord"

    def admin_view(self, view: Callable[..., Any], cacheable: bool = False) -> Any:
        """Users without access get the site's error page, not a second login form."""
        inner = super().admin_view(view, cacheable)

        def guarded(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
            if request.user.is_authenticated and not self.has_permission(request):
                raise PermissionDenied
            return inner(request, *args, **kwargs)

        return update_wrapper(guarded, inner)

    @method_decorator(login_not_required)
    def login(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """The site has one login page."""
        if request.user.is_authenticated and not self.has_permission(request):
            raise PermissionDenied
        home = reverse("admin:index")
        if request.user.is_authenticated:
            return redirect(home)
        return redirect_to_login(request.GET.get("next") or home)

    def index(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> Any:
        """The models that operators edit; the internal tables are folded away below them."""
        apps = self.get_app_list(request)
        shown = [app for app in apps if app["name"] in TOPICS]
        internal = [app for app in apps if app["name"] not in TOPICS]
        context = {"app_list": shown, "internal_apps": internal, **(extra_context or {})}
        return super().index(request, context)

    def get_app_list(self, request: HttpRequest, app_label: str | None = None) -> list[Any]:
        apps = super().get_app_list(request, app_label)
        return apps if app_label else _by_topic(apps)


def _by_topic(apps: list[Any]) -> list[Any]:
    models = {model["object_name"]: model for app in apps for model in app["models"]}
    topics = [(name, [models[m] for m in of if m in models]) for name, of in TOPICS.items()]
    listed = {model for of in TOPICS.values() for model in of}
    rest = [
        app | {"models": left}
        for app in apps
        if (left := [m for m in app["models"] if m["object_name"] not in listed])
    ]
    return [_topic(name, models) for name, models in topics if models] + rest


def _topic(name: str, models: list[Any]) -> dict[str, Any]:
    return {
        "name": name,
        "app_label": name.lower().replace(" ", "-"),
        "app_url": reverse("admin:index"),
        "has_module_perms": True,
        "models": models,
    }
