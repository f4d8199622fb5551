"""Rows: who changed or did what. Written in the transaction of the change itself."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from monitor.models import AuditEntry

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
    """`action` is a stable UPPER_CASE name, `subject` what it was done to ("incident 12").

    `by` is a user's name, or GPUCOORD for what was done by itself. Never put a secret in here.
    """
    return AuditEntry.objects.create(
        at=now, by=by, action=action, subject=subject, text=text, before=before, after=after
    )


def about(subject: str, limit: int = 50) -> list[AuditEntry]:
    """The newest first."""
    return list(AuditEntry.objects.filter(subject=subject).order_by("-at", "-id")[:limit])
