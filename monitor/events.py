"""Rows <-> facts: what happened, with stable names for kinds."""

from __future__ import annotations

from datetime import datetime

from monitor import tallies
from monitor.models import Event


def add(
    kind: str,
    text: str,
    *,
    now: datetime,
    severity: str = "info",
    host: str = "",
    gpu_uuid: str = "",
    job_ref: str = "",
    owner: str = "",
) -> Event:
    """Note that something happened; `kind` is an UPPER_CASE name that never changes."""
    tallies.add(tallies.EVENTS, kind)
    return Event.objects.create(
        at=now,
        kind=kind,
        text=text,
        severity=severity,
        host=host,
        gpu_uuid=gpu_uuid,
        job_ref=job_ref,
        owner=owner,
    )


def recent(
    limit: int = 20,
    *,
    kind: str = "",
    host: str = "",
    gpu_uuid: str = "",
    job_ref: str = "",
    since: datetime | None = None,
) -> list[Event]:
    """The newest events first, of those that match what is given."""
    wanted = {
        "kind": kind,
        "host": host,
        "gpu_uuid": gpu_uuid,
        "job_ref": job_ref,
        "at__gte": since,
    }
    matching = Event.objects.filter(**{name: value for name, value in wanted.items() if value})
    return list(matching.order_by("-at", "-id")[:limit])


def count(kind: str, *, since: datetime, gpu_uuid: str = "") -> int:
    """How many of a kind there were after `since`, of one GPU or of none in particular."""
    return Event.objects.filter(kind=kind, at__gt=since, gpu_uuid=gpu_uuid).count()
