"""Admin: the notification settings of users, to look at. Addresses are never shown."""

from __future__ import annotations

from django.contrib import admin

from monitor.admin.base import ReadOnly
from scheduler.models import NotificationCursor, NotificationSettings, SavedView


@admin.register(NotificationSettings)
class NotificationSettingsAdmin(ReadOnly):
    fields = ("user", "kinds", "by_mail", "channel")
    list_display = ("user", "kinds", "by_mail", "channel")
    list_select_related = ("user", "channel")
    search_fields = ("user__username",)
    ordering = ("user__username",)


@admin.register(NotificationCursor)
class NotificationCursorAdmin(ReadOnly):
    list_display = ("__str__", "seen_event")


@admin.register(SavedView)
class SavedViewAdmin(ReadOnly):
    """Named filters of the list of jobs; users save and remove them there."""

    list_display = ("user", "name", "query")
