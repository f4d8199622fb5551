"""Rows: actions of users and operators, written in the transaction of the action."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.db.models import QuerySet

from monitor.models import AuditEntry
from monitor.runtime.rows.database import compiled_once

GPUCOORD = "gpucoord"


def note(
    action: str,
    text: str,
    *,
    by: str,
    now: datetime,
    subject: str = "",
    before: Any = None,
    after: Any = None,
) -> AuditEntry:
    """`action` is a stable UPPER_CASE name, `subject` the object of the action ("incident 12").

    `by` is a user's name, or GPUCOORD for its own actions. Never put a secret in here.
    """
    return AuditEntry.objects.create(
        at=now, by=by, action=action, subject=subject, text=text, before=before, after=after
    )


# Transactions may commit in another order than that of their ids.
_OVERTAKING = 16


@compiled_once
def newest() -> QuerySet[AuditEntry, int]:
    """The ids of the newest entries: the same while no user has changed a setting."""
    return AuditEntry.objects.order_by("-id").values_list("id", flat=True)[:_OVERTAKING]


def about(subject: str, limit: int = 50) -> list[AuditEntry]:
    """Entries of one subject, newest first."""
    return list(AuditEntry.objects.filter(subject=subject).order_by("-at", "-id")[:limit])
