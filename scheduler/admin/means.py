"""Admin: what each host has to keep jobs within their bounds, to look at."""

from __future__ import annotations

from django.contrib import admin

from monitor.admin.rows import ReadOnly
from scheduler.models import Means


@admin.register(Means)
class MeansAdmin(ReadOnly):
    list_display = ("name", "host", "active", "text", "since_at")
    list_filter = ("active", "host", "name")
    search_fields = ("name", "text", "host")
    date_hierarchy = "since_at"
    ordering = ("host", "name")
