"""Admin: what the controller allows, each host's mode (set on its page), the planners' turn."""

from __future__ import annotations

from django.contrib import admin

from monitor.admin.rows import Forgettable, ReadOnly
from scheduler.models import ModeState, PlanTurn, ThrottleState


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


@admin.register(PlanTurn)
class PlanTurnAdmin(ReadOnly):
    list_display = ("id", "taken")
    search_fields = ("id",)
    ordering = ("id",)
