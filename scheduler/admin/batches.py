"""Admin: batches and their items, to look at."""

from __future__ import annotations

from django.contrib import admin

from monitor.admin.base import ReadOnly
from scheduler.models import Batch, BatchItem, ExclusiveRun


@admin.register(Batch)
class BatchAdmin(ReadOnly):
    list_display = ("id", "name", "owner", "state", "total_items", "completed", "failed")
    list_filter = ("state", "script")
    list_select_related = ("owner",)
    search_fields = ("name", "owner__username")
    exclude = ("request",)
    ordering = ("-id",)


@admin.register(ExclusiveRun)
class ExclusiveRunAdmin(ReadOnly):
    list_display = ("batch", "host", "step", "since", "waits_for", "stopped_by")
    list_filter = ("step", "host")
    list_select_related = ("batch",)
    search_fields = ("=batch__id",)
    ordering = ("-batch",)


@admin.register(BatchItem)
class BatchItemAdmin(ReadOnly):
    list_display = ("batch", "index", "status", "attempt", "job", "gpu_uuid")
    list_filter = ("status",)
    list_select_related = ("batch", "job")
    search_fields = ("=batch__id", "=job__id")
    ordering = ("-batch", "index")
