"""Admin, read-only: the space of watched folders."""

from __future__ import annotations

from django.contrib import admin

from monitor.admin.base import Forgettable
from scheduler.models import WatchedDisk


@admin.register(WatchedDisk)
class WatchedDiskAdmin(Forgettable):
    list_display = ("path", "host", "role", "level", "used_pct", "since_at", "at")
    list_filter = ("host", "level", "role")
    search_fields = ("path", "host")
    ordering = ("host", "path")
