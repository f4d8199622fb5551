"""Rows: open incidents, and the share of time with a hog."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Q, QuerySet

from monitor.incidents.facts import HOG_RULES
from monitor.incidents.policy.lifecycle import union_s
from monitor.models import Gpu, Incident
from monitor.runtime.rows.prepared import compiled_for_times, compiled_once


def open_rows(host: str | None = None) -> QuerySet[Incident]:
    """The open rows, on `host` or anywhere: incidents and their facets."""
    rows = Incident.objects.filter(closed_at__isnull=True)
    return rows if host is None else rows.filter(host=host)


@compiled_once
def all_open_rows() -> QuerySet[Incident]:
    """The open rows of all hosts, by a compiled query."""
    return open_rows()


def open_incidents() -> QuerySet[Incident]:
    """The open incidents, each once: without their facets."""
    return open_rows().filter(lead__isnull=True)


def not_snoozed(now: datetime) -> list[Incident]:
    """The open rows of all hosts that are not muted."""
    return [row for row in all_open_rows() if row.snoozed_until is None or row.snoozed_until <= now]


def count(rows: Iterable[Incident]) -> int:
    """How many incidents these rows are: an incident and its facets count once."""
    return len({row.lead_id or row.pk for row in rows})


def hogs_on(host: str, now: datetime | None = None) -> set[str]:
    """The GPUs (by UUID) of `host` with a hog; with `now` without snoozed incidents."""
    rows = all_open_rows() if now is None else not_snoozed(now)
    mine = (row for row in rows if row.host == host and row.over_at is None and row.is_hog)
    return {row.gpu_id for row in mine if row.gpu_id is not None and row.rule in HOG_RULES}


def hog_share(host: str, hours: float, now: datetime) -> float | None:
    """The part (0..1) of the last `hours` in which a hog was on a GPU of `host`.

    Use of idle capacity while no job waited does not count. None = nothing is known of this host.
    """
    spans = hog_spans(host, hours, now)
    if not spans and not _any_gpu(host):
        return None
    return union_s(spans) / (hours * 3600)


@compiled_once
def _any_gpu(host: str) -> QuerySet[Any, str]:
    return Gpu.objects.filter(host=host).order_by().values_list("pk", flat=True)[:1]


def hog_spans(host: str, hours: float, now: datetime) -> list[tuple[float, float]]:
    """Begin and end of the times with overuse in the last `hours`; they may overlap."""
    since = now - timedelta(hours=hours)
    first, last = since.timestamp(), now.timestamp()
    return [
        (max(begin, first), min(end, last))
        for spans in _spans_since(host, since)
        for begin, end in spans
    ]


@compiled_for_times
def _spans_since(host: str, at: datetime) -> QuerySet[Any, list[list[float]]]:
    rows = Incident.objects.filter(host=host, rule__in=HOG_RULES, last_seen_at__gt=at)
    return rows.values_list("hog_spans", flat=True)


def of_person(name: str) -> Q:
    """Incidents of the processes and jobs of a user."""
    return Q(job_owner=name) | Q(job_owner="", user=name)
