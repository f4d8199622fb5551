"""Admin: what its pages are called, and its first page: what operators decide comes first."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import HttpRequest
from django.urls import reverse

# What operators come for, by model; the rest is what gpucoord writes down itself, by app.
TOPICS = {
    "People": ("User", "Group", "ApiToken"),
    "Who may use how much": ("Quota", "TimeWindow", "Exemption"),
    "Logins": ("AccessAttempt", "AccessFailureLog", "AccessLog"),
    "Rules and alerts": ("PolicyValues", "Channel"),
    "What happens": ("Job", "Incident", "Event", "Message", "Response", "GpuClosure", "AuditEntry"),
}


class Site(admin.AdminSite):
    index_title = "What operators decide, and all that gpucoord keeps"
    site_header = "gpucoord administration"
    site_title = "gpucoord"

    def get_app_list(self, request: HttpRequest, app_label: str | None = None) -> list[Any]:
        apps = super().get_app_list(request, app_label)
        return apps if app_label else _by_topic(apps)


def _by_topic(apps: list[Any]) -> list[Any]:
    models = {model["object_name"]: model for app in apps for model in app["models"]}
    topics = [(name, [models[m] for m in of if m in models]) for name, of in TOPICS.items()]
    told = {model for of in TOPICS.values() for model in of}
    rest = [
        app | {"models": left}
        for app in apps
        if (left := [m for m in app["models"] if m["object_name"] not in told])
    ]
    return [_topic(name, found) for name, found in topics if found] + rest


def _topic(name: str, models: list[Any]) -> dict[str, Any]:
    return {
        "name": name,
        "app_label": name.lower().replace(" ", "-"),
        "app_url": reverse("admin:index"),
        "has_module_perms": True,
        "models": models,
    }
