"""Admin, read-only: isolation features, refused locks, throttle, mode and engine of each host."""

from __future__ import annotations

from django.contrib import admin

from monitor.admin.base import Forgettable, ReadOnly
from scheduler.models import (
    EngineStatus,
    EngineTask,
    HostCapability,
    LockRefusal,
    ModeState,
    PlanVersion,
    ThrottleState,
)


@admin.register(HostCapability)
class HostCapabilityAdmin(ReadOnly):
    list_display = ("name", "host", "active", "text", "since_at")
    list_filter = ("active", "host", "name")
    search_fields = ("name", "text", "host")
    date_hierarchy = "since_at"
    ordering = ("host", "name")


@admin.register(LockRefusal)
class LockRefusalAdmin(ReadOnly):
    list_display = ("gpu_uuid", "host", "text", "refused_at", "wait_s")
    list_filter = ("host",)
    search_fields = ("gpu_uuid", "text", "host")
    date_hierarchy = "refused_at"
    ordering = ("-refused_at",)


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


@admin.register(PlanVersion)
class PlanVersionAdmin(ReadOnly):
    list_display = ("id", "taken")
    search_fields = ("id",)
    ordering = ("id",)


@admin.register(EngineStatus)
class EngineStatusAdmin(Forgettable):
    list_display = ("host", "engine", "version", "problem", "since_at", "answered_at")
    list_filter = ("engine",)
    search_fields = ("host", "problem")
    ordering = ("host",)


@admin.register(EngineTask)
class EngineTaskAdmin(ReadOnly):
    list_display = ("job", "engine", "ref", "word", "reason", "nodes", "created_at", "closed_at")
    list_filter = ("engine", "word", "host")
    search_fields = ("job__name", "job__owner__username", "ref", "nonce", "nodes")
    date_hierarchy = "created_at"
    ordering = ("-pk",)
    list_select_related = ("job",)
