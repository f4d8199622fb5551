"""Admin: registered hosts. The page /hosts/ has the same actions with explanations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils import timezone

from monitor.admin.base import Forgettable, ReadOnly
from monitor.facts.hosts import HostState
from monitor.gpus.hosts import actions as host_actions
from monitor.gpus.hosts import rows
from monitor.models import Host, JoinToken

Action = Callable[["HostAdmin", HttpRequest, QuerySet[Host]], None]


def _sets(state: HostState, label: str) -> Action:
    @admin.action(description=f"{label} the selected hosts")
    def action(_admin: HostAdmin, request: HttpRequest, chosen: QuerySet[Host]) -> None:
        by, now = request.user.get_username(), timezone.now()
        done = [host_actions.change(host.name, state, by, "", now) for host in chosen]
        messages.success(request, f"{sum(done)} hosts are {state.value} now.")

    action.__name__ = label.lower()
    return action


@admin.register(Host)
class HostAdmin(ReadOnly):
    list_display = (
        "name", "state", "version", "profile", "address", "started_at", "silent_since_at",
        "down_at",
    )  # fmt: skip
    list_filter = ("state", "version", ("down_at", admin.EmptyFieldListFilter))
    search_fields = ("name", "address")
    date_hierarchy = "joined_at"
    ordering = ("name",)
    actions = (
        _sets(HostState.DRAINED, "Drain"),
        _sets(HostState.ACTIVE, "Enable"),
        _sets(HostState.DISABLED, "Disable"),
        "remove",
    )

    @admin.action(description="Remove the selected hosts without contact")
    def remove(self, request: HttpRequest, chosen: QuerySet[Host]) -> None:
        for host in chosen:
            fact = rows.find(host.name)
            if fact and (
                problem := host_actions.remove(fact, request.user.get_username(), timezone.now())
            ):
                messages.error(request, problem)

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        # The list with its actions; a single host is shown without fields to edit.
        return obj is None and request.user.has_perm("monitor.change_host")


@admin.register(JoinToken)
class JoinTokenAdmin(Forgettable):
    """Tokens that no host has used yet; the page of hosts makes them."""

    list_display = ("made_by", "created_at", "expires_at")
    search_fields = ("made_by",)
    date_hierarchy = "created_at"
    ordering = ("-created_at",)
    fields = ("made_by", "created_at", "expires_at")
