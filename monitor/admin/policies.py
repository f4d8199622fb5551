"""Admin: thresholds, and who changed what."""

from __future__ import annotations

from django.contrib import admin

from monitor.admin.rows import ReadOnly
from monitor.models import AuditEntry, PolicyValues


@admin.register(AuditEntry)
class AuditEntryAdmin(ReadOnly):
    list_display = ("at", "by", "action", "subject", "text")
    list_filter = ("action", "by")
    search_fields = ("subject", "text", "by")
    date_hierarchy = "at"
    ordering = ("-at", "-id")


@admin.register(PolicyValues)
class PolicyValuesAdmin(ReadOnly):
    list_display = ("name", "values")
