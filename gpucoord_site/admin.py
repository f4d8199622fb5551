"""Admin: titles, access, the groups of its index page, and readable lists."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from functools import update_wrapper
from typing import Any

from django.contrib import admin, messages
from django.contrib.auth.decorators import login_not_required
from django.contrib.auth.views import redirect_to_login
from django.core.exceptions import FieldDoesNotExist, PermissionDenied
from django.db import models
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.utils import timezone
from django.utils.decorators import method_decorator
from django.utils.html import format_html

from monitor.facts import formats
from monitor.templatetags import monitor_tags
from scheduler.templatetags import job_tags

# Two groups of settings for operators, and the tables to look at when something is wrong.
PEOPLE, RULES, TROUBLESHOOTING = "People and limits", "Alerts and rules", "Troubleshooting"
GROUPS = {
    PEOPLE: ("User", "Group", "OsAccount", "ApiToken", "Agent", "Quota", "TimeWindow", "Exemption"),
    RULES: (
        "PolicyValues",
        "Channel",
        "ReportSchedule",
        "ScriptDefinition",
        "JobPreset",
        "ModelService",
        "IdleTemplate",
    ),
}
# The first tables of the third group; the others follow by app.
HISTORY = ("Job", "Incident", "Event", "Message", "Response", "GpuClosure", "AuditEntry", "Host")
LOGINS = ("AccessAttempt", "AccessFailureLog", "AccessLog", "ExternalLogin", "LoginLink")
# The last word of a field's name, and the unit that it means; the values of sizes have theirs.
UNITS = {"bytes": "", "s": "s", "pct": "%", "w": "W", "c": "°C", "ms": "ms", "bps": "B/s", "j": "J"}
WORDS = {"gpu": "GPU", "uuid": "UUID", "uuids": "UUIDs", "cpu": "CPU", "pci": "PCI", "id": "ID",
            "pid": "PID", "mib": "MiB", "nvml": "NVML", "sm": "GPU time", "io": "I/O", "os": "OS",
            "gpus": "GPUs", "cpus": "CPUs", "ecc": "ECC", "ref": "reference",
            "asked": "requested"}  # fmt: skip
FOLDED = {"Jobs, incidents and history": HISTORY, "Logins": LOGINS}


# Each word is looked for in each column; a database refuses conditions that are too long.
MOST_WORDS = 20
TOO_MANY_WORDS = f"Search for at most {MOST_WORDS} words."


class Readable:
    """Figures with three digits and units, and times with UTC in the title: in lists, and in the
    fields that are not edited. Searches are bounded.
    """

    opts: Any

    def get_search_results(
        self, request: HttpRequest, queryset: Any, search_term: str
    ) -> tuple[Any, bool]:
        if len(search_term.split()) > MOST_WORDS:
            messages.warning(request, TOO_MANY_WORDS)
            return queryset.none(), False
        rows: tuple[Any, bool] = super().get_search_results(  # type: ignore[misc]
            request, queryset, search_term
        )
        return rows

    def get_list_display(self, request: HttpRequest) -> list[Any]:
        columns = super().get_list_display(request)  # type: ignore[misc]
        return [self._readable(column) for column in columns]

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        fieldsets = super().get_fieldsets(request, obj)  # type: ignore[misc]
        if obj is None or self.has_change_permission(request, obj):  # type: ignore[attr-defined]
            return fieldsets
        return [(title, {**options, "fields": self._shown(options["fields"])})
                for title, options in fieldsets]  # fmt: skip

    def _shown(self, names: Any) -> list[Any]:
        return [
            tuple(self._shown(name)) if isinstance(name, list | tuple) else self._readable(name)
            for name in names
        ]

    def _readable(self, column: Any) -> Any:
        field = self._field(column)
        words = _words(field) if field is not None else None
        return column if words is None else _column(field, words)

    def _field(self, column: Any) -> Any:
        if not isinstance(column, str) or hasattr(self, column):
            return None
        with suppress(FieldDoesNotExist):
            return self.opts.get_field(column)
        return None


def _words(field: Any) -> Callable[[Any], str] | None:
    """How a value of the field is written; None = as Django does it."""
    if isinstance(field, models.DateTimeField):
        return _moment
    if field.name == "t":
        return lambda seconds: _moment(datetime.fromtimestamp(seconds, UTC))
    if field.name.endswith("_bytes"):
        return job_tags.size
    if isinstance(field, models.FloatField):
        return _number
    if isinstance(field, models.JSONField):
        return _listed
    if field.name == "text":
        return monitor_tags.with_times
    is_plain = isinstance(field, models.CharField | models.IntegerField) and not field.choices
    return str if is_plain and _head(field) != field.verbose_name else None


def _column(field: Any, words: Callable[[Any], str]) -> Callable[[Any], str]:
    @admin.display(description=_head(field), ordering=field.name)
    def shown(row: Any) -> str:
        value = getattr(row, field.attname)
        return formats.UNKNOWN if value in (None, "") else words(value)

    shown.__name__ = field.name
    return shown


def _head(field: Any) -> str:
    """The name of a field for people: units in brackets, abbreviations in capitals."""
    words = str(field.verbose_name).split(" ")
    if field.name == "t":
        return "time"
    if "_".join(words) != field.name:
        return " ".join(words)
    if words[-1] in UNITS and len(words) > 1:
        unit = UNITS[words.pop()]
        words += [f"({unit})"] if unit else []
    return " ".join(WORDS.get(word, word) for word in words)


def _number(value: float) -> str:
    """Three digits; whole numbers in full."""
    return f"{value:.0f}" if value.is_integer() else formats.sig3(value)


def _listed(value: Any) -> str:
    """A list or an object in one line."""
    if isinstance(value, dict):
        value = [f"{name}: {each}" for name, each in value.items()]
    if isinstance(value, list):
        value = ", ".join(map(str, value)) or formats.UNKNOWN
    return monitor_tags.with_times(str(value))


def _moment(at: datetime) -> str:
    here = timezone.localtime(at)
    words = f"{here.day} {here:%b %Y %H:%M:%S}"
    utc = f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
    return format_html('<time datetime="{}" title="{}">{}</time>', at.isoformat(), utc, words)


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

    def register(self, model_or_iterable: Any, admin_class: Any = None, **options: Any) -> None:
        """Lists of all models are readable, also those of other packages."""
        base = admin_class or admin.ModelAdmin
        readable = type(base.__name__, (Readable, base), {"__module__": base.__module__})
        super().register(model_or_iterable, readable, **options)

    def index(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> Any:
        """The models that operators edit; the internal tables are folded away below them."""
        apps = self.get_app_list(request)
        shown = [app for app in apps if app["name"] in GROUPS]
        internal = [app for app in apps if app["name"] not in GROUPS]
        context = {"app_list": shown, "internal_apps": internal, **(extra_context or {})}
        return super().index(request, context)

    def each_context(self, request: HttpRequest) -> dict[str, Any]:
        """The sidebar of each page lists what operators decide."""
        context = super().each_context(request)
        apps = [app for app in context["available_apps"] if app["name"] in GROUPS]
        return {**context, "available_apps": apps}

    def get_app_list(self, request: HttpRequest, app_label: str | None = None) -> list[Any]:
        apps = super().get_app_list(request, app_label)
        return apps if app_label else _grouped(apps)


def _grouped(apps: list[Any]) -> list[Any]:
    by_name = {model["object_name"]: model for app in apps for model in app["models"]}
    groups = {**GROUPS, **FOLDED}
    made = [(name, [by_name[m] for m in of if m in by_name]) for name, of in groups.items()]
    listed = {model for of in groups.values() for model in of}
    rest = [
        app | {"models": left}
        for app in apps
        if (left := [m for m in app["models"] if m["object_name"] not in listed])
    ]
    return [_group(name, models) for name, models in made if models] + rest


def _group(name: str, members: list[Any]) -> dict[str, Any]:
    return {
        "name": name,
        "app_label": name.lower().replace(" ", "-"),
        "app_url": reverse("admin:index"),
        "has_module_perms": True,
        "models": members,
    }
