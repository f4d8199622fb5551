"""Admin: what the controller allows, and the mode of each host. The mode is set on its page."""

from __future__ import annotations

from django.contrib import admin

from monitor.admin.rows import Forgettable
from scheduler.models import ModeState, ThrottleState


@admin.register(ThrottleState)
class ThrottleStateAdmin(Forgettable):
    list_display = ("host", "at")
    list_filter = ("host",)
    search_fields = ("host",)
    ordering = ("host",)


@admin.register(ModeState)
class ModeStateAdmin(Forgettable):
    list_display = ("host", "mode", "since_at", "reason", "override", "override_until")
    list_filter = ("host", "mode", "override")
    search_fields = ("host", "reason", "override_by")
    ordering = ("host",)
