"""Admin: what ended attempts used of their GPUs, to look at."""

from __future__ import annotations

from django.contrib import admin
from django.utils.html import format_html
from django.utils.safestring import SafeString

from monitor.admin.base import ReadOnly
from scheduler.models import AttemptUse
from scheduler.sizing import policy, step


@admin.register(AttemptUse)
class AttemptUseAdmin(ReadOnly):
    list_display = ("job", "gpu_model", "summary", "mean_pct", "p95_pct", "coverage_pct")
    list_filter = ("gpu_model", "is_sample")
    list_select_related = ("attempt__job",)
    search_fields = ("=attempt__job__id", "attempt__job__owner__username", "fingerprint")
    ordering = ("-attempt",)

    @admin.display(description="job", ordering="attempt")
    def job(self, row: AttemptUse) -> SafeString:
        return format_html("{} {}", row.attempt.job_id, row.attempt.job.name)

    @admin.display(description="use")
    def summary(self, row: AttemptUse) -> str:
        return policy.efficiency(step.fact(row), row.attempt.job.gpu_memory_bytes) or "unknown"
