"""Admin: who was asked to yield, and which GPUs are kept for whom; to look at."""

from __future__ import annotations

from django.contrib import admin

from monitor.admin.rows import ReadOnly
from scheduler.models import KeptGpu, YieldRequest


@admin.register(YieldRequest)
class YieldRequestAdmin(ReadOnly):
    list_display = (
        "attempt", "kind", "code", "for_job", "counts", "asked_at", "deadline", "withdrawn_at",
    )  # fmt: skip
    list_filter = ("kind", "code", "counts")
    list_select_related = ("attempt", "for_job")
    search_fields = ("=attempt__job__id", "=for_job__id", "attempt__job__owner__username")
    date_hierarchy = "asked_at"
    ordering = ("-id",)


@admin.register(KeptGpu)
class KeptGpuAdmin(ReadOnly):
    list_display = ("host", "gpu_uuid", "job", "until")
    list_filter = ("host",)
    list_select_related = ("job",)
    search_fields = ("=job__id", "gpu_uuid")
