"""Rows <-> facts: what happened, with stable names for kinds."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import partial

from django.db import transaction

from monitor import tallies
from monitor.event_kinds import EVENTS
from monitor.models import Event

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
) -> Event:
    """Note that something happened; `kind` is an UPPER_CASE name that never changes.

    A log line tells it too, once it is committed; not `logged` is what the caller logs itself.
    """
    tallies.add(tallies.EVENTS, kind)
    event = Event.objects.create(
        at=now,
        kind=kind,
        text=text,
        severity=severity,
        host=host,
        gpu_uuid=gpu_uuid,
        job_ref=job_ref,
        owner=owner,
    )
    if logged:
        transaction.on_commit(partial(_log, event))
    return event


@contextmanager
def unlogged() -> Iterator[None]:
    """Events inside make no log lines: they are of the past."""
    logger.disabled = True
    try:
        yield
    finally:
        logger.disabled = False


def _log(event: Event) -> None:
    about = {
        "host": event.host,
        "gpu": event.gpu_uuid,
        "job": event.job_ref,
        "owner": event.owner,
    }
    fields = {"kind": event.kind, **{name: value for name, value in about.items() if value}}
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
    """The newest events first, of those that match what is given.

    `kind` is a name, or a group of event_kinds; `least` the severity from which on.
    """
    wanted = {
        "kind__in": EVENTS.get(kind, (kind,)) if kind else (),
        "host": host,
        "gpu_uuid": gpu_uuid,
        "job_ref": job_ref,
        "owner": owner,
        "severity__in": from_severity(least) if least else (),
        "at__gte": since,
        "at__lt": until,
    }
    matching = Event.objects.filter(**{name: value for name, value in wanted.items() if value})
    return list(matching.order_by("-at", "-id")[skip : skip + limit])


def from_severity(least: str) -> tuple[str, ...]:
    """This severity and all that are worse."""
    order = tuple(Event.Severity.values)
    return order[order.index(least) :]


def count(kind: str, *, since: datetime, gpu_uuid: str = "", owner: str = "") -> int:
    """How many of a kind there were after `since`, of one GPU and person or of none of them."""
    found = Event.objects.filter(kind=kind, at__gt=since, gpu_uuid=gpu_uuid, owner=owner)
    return found.count()
