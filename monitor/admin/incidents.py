"""Admin: incidents, exemptions and patterns, to look at; they are acted upon on their own pages."""

from __future__ import annotations

from django.contrib import admin

from monitor.admin.rows import Forgettable, ReadOnly
from monitor.models import CpuLook, Exemption, Incident, Pattern


@admin.register(Incident)
class IncidentAdmin(ReadOnly):
    list_display = ("text", "rule", "severity", "user", "host", "opened_at", "closed_at")
    list_filter = (
        ("closed_at", admin.EmptyFieldListFilter),
        "rule",
        "severity",
        "host",
    )
    search_fields = ("text", "user", "job_owner", "job_ref", "program", "pid")
    date_hierarchy = "opened_at"
    ordering = ("-opened_at", "-id")


@admin.register(Exemption)
class ExemptionAdmin(ReadOnly):
    list_display = ("scope", "name", "rule", "by", "from_at", "until_at", "reason")
    list_filter = ("scope", "rule")
    search_fields = ("name", "reason", "by")
    date_hierarchy = "from_at"
    ordering = ("-id",)


@admin.register(CpuLook)
class CpuLookAdmin(Forgettable):
    list_display = ("host", "at")
    search_fields = ("host",)
    ordering = ("host",)


@admin.register(Pattern)
class PatternAdmin(ReadOnly):
    list_display = ("text", "user", "hits", "chances", "mean_pct", "found_at")
    list_filter = ("host", "days")
    search_fields = ("text", "user", "program")
    ordering = ("-hits", "id")
