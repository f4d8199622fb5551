"""Admin, read-only: the space of watched folders, and clean-ups."""

from __future__ import annotations

from django.contrib import admin

from monitor.admin.base import Forgettable, ReadOnly
from scheduler.models import CleaningRun, WatchedDisk


@admin.register(WatchedDisk)
class WatchedDiskAdmin(Forgettable):
    list_display = ("path", "host", "role", "level", "used_pct", "since_at", "at")
    list_filter = ("host", "level", "role")
    search_fields = ("path", "host")
    ordering = ("host", "path")


@admin.register(CleaningRun)
class CleaningRunAdmin(ReadOnly):
    list_display = ("id", "host", "path", "dry_run", "state", "freed_bytes", "asked_by", "asked_at")
    list_filter = ("host", "state", "dry_run")
    search_fields = ("host", "path", "asked_by")
    ordering = ("-id",)
