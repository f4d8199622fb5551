"""Tables of reports about subjects that have figures of their own: models and batches."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from django.conf import settings
from django.contrib.auth.models import User
from django.db.models import Q, QuerySet, Sum

from monitor.owners.identity.policy import Viewer
from monitor.runtime.rows.item_isolation import ItemIsolation
from reports.figures.facts import Table
from reports.periods.facts import Period, Scope, ScopeKind
from scheduler.models import Batch, ModelUse

MOST_BATCHES = 50
# Requests and batches belong to users, not to GPUs or hosts.
_OF_PLACES = (ScopeKind.GPU, ScopeKind.HOST)


def tables(period: Period, scope: Scope, viewer: Viewer, now: datetime) -> tuple[Table, ...]:
    """The tables that have rows. A section that fails is reported and left out."""
    sections: dict[str, Callable[[], Table | None]] = {
        "models": lambda: models(period, scope),
        "batches": lambda: batches(period, scope, viewer),
    }
    isolation = ItemIsolation(settings.CONFIG.node, "report sections")
    made = isolation.each(sections, str, lambda name: sections[name](), now)
    return tuple(table for _, table in made if table is not None)


def models(period: Period, scope: Scope) -> Table | None:
    """Requests to each model, by prompts and by the endpoint; sums over the users of the scope."""
    if scope.kind in _OF_PLACES:
        return None
    uses = ModelUse.objects.filter(hour_at__gte=period.since, hour_at__lt=period.until)
    fields = ("requests", "failed", "cold", "prompt_tokens", "completion_tokens")
    sums = _owned(uses, scope, "owner").values("model").order_by("model")
    rows = sums.annotate(**{f"sum_{name}": Sum(name) for name in fields})
    return _table(
        "models",
        "Requests to models",
        (
            "Model",
            "Requests",
            "Failed",
            "Waited for a boot",
            "Tokens of prompts",
            "Tokens of answers",
        ),
        [(row["model"], *(row[f"sum_{name}"] for name in fields)) for row in rows],
        "Requests are counted by whole hours.",
    )


def batches(period: Period, scope: Scope, viewer: Viewer) -> Table | None:
    """The newest batches of the period: of all users for operators, else the viewer's own."""
    if scope.kind in _OF_PLACES:
        return None
    rows = Batch.objects.filter(created_at__lt=period.until).filter(
        Q(ended_at=None) | Q(ended_at__gt=period.since)
    )
    rows = _owned(rows, scope, "owner__username").select_related("owner")
    if not viewer.operator:
        rows = rows.filter(owner__username=viewer.username)
    return _table(
        "batches",
        "Batches",
        ("Batch", "User", "State", "Items", "Completed", "Failed", "Run time (h)"),
        [
            (
                f"{row.pk} {row.name}",
                row.owner.username,
                row.state,
                row.total_items,
                row.completed,
                row.failed,
                row.work_s / 3600,
            )
            for row in rows.order_by("-id")[:MOST_BATCHES]
        ],
        "Run time: of ended items, over the whole life of the batch.",
    )


def _owned(rows: QuerySet[Any], scope: Scope, owner: str) -> QuerySet[Any]:
    """Those of the scope's users."""
    if scope.kind is ScopeKind.USER:
        return rows.filter(**{owner: scope.name})
    if scope.kind is ScopeKind.GROUP:
        members = User.objects.filter(groups__name=scope.name).values("username")
        return rows.filter(**{f"{owner}__in": members})
    return rows


def _table(
    key: str, title: str, head: tuple[str, ...], rows: list[tuple[Any, ...]], note: str
) -> Table | None:
    return Table(key=key, title=title, head=head, rows=tuple(rows), note=note) if rows else None
