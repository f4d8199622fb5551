"""Rows <-> facts: events, with stable names for kinds."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from functools import partial

from django.db import transaction

from monitor.journal.facts import EVENTS
from monitor.journal.rows import counters
from monitor.models import Event
from monitor.runtime.rows.database import insert_row

logger = logging.getLogger(__name__)
LEVELS = {"info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


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
    logged: bool = True,
    figures: Mapping[str, float] | None = None,
) -> Event:
    """Record an event; `kind` is an UPPER_CASE name that never changes.

    After the commit a log line repeats it, with `figures` as more fields; unless `logged` is false,
    because the caller logs it.
    """
    counters.add(counters.EVENTS, kind)
    event = Event(
        at=now,
        kind=kind,
        text=text,
        severity=severity,
        host=host,
        gpu_uuid=gpu_uuid,
        job_ref=job_ref,
        owner=owner,
    )
    insert_row(event)
    if logged:
        transaction.on_commit(partial(_log, event, figures or {}))
    return event


@contextmanager
def unlogged() -> Iterator[None]:
    """Events recorded inside make no log lines: they are of the past."""
    logger.disabled = True
    try:
        yield
    finally:
        logger.disabled = False


def _log(event: Event, figures: Mapping[str, float]) -> None:
    about = {
        "host": event.host,
        "gpu": event.gpu_uuid,
        "job": event.job_ref,
        "owner": event.owner,
    }
    non_empty = {name: value for name, value in about.items() if value}
    fields = {"kind": event.kind, **non_empty, **figures}
    logger.log(LEVELS.get(event.severity, logging.INFO), event.text, extra=fields)


def recent(
    limit: int = 20,
    *,
    kind: str = "",
    host: str = "",
    gpu_uuid: str = "",
    job_ref: str = "",
    owner: str = "",
    least: str = "",
    since: datetime | None = None,
    until: datetime | None = None,
    skip: int = 0,
) -> list[Event]:
    """Matching events, newest first.

    `kind` is a name, or a group of event_kinds; `least` the lowest severity.
    """
    filters = {
        "kind__in": EVENTS.get(kind, (kind,)) if kind else (),
        "host": host,
        "gpu_uuid": gpu_uuid,
        "job_ref": job_ref,
        "owner": owner,
        "severity__in": from_severity(least) if least else (),
        "at__gte": since,
        "at__lt": until,
    }
    matching = Event.objects.filter(**{name: value for name, value in filters.items() if value})
    return list(matching.order_by("-at", "-id")[skip : skip + limit])


def from_severity(least: str) -> tuple[str, ...]:
    """This severity and all higher ones."""
    order = tuple(Event.Severity.values)
    return order[order.index(least) :]


def count(kind: str, *, since: datetime, gpu_uuid: str = "", owner: str = "") -> int:
    """Number of events of a kind after `since`, for a GPU and user; empty = without one."""
    matching = Event.objects.filter(kind=kind, at__gt=since, gpu_uuid=gpu_uuid, owner=owner)
    return matching.count()
