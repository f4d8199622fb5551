"""Rows: incidents that go on, and how much hogging there was."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.db.models import Q, QuerySet

from monitor.models import Gpu, Incident
from monitor.policy.hog_rules import HOG_RULES
from monitor.prepared import prepared


def going_on(host: str | None = None) -> QuerySet[Incident]:
    """What is open, on `host` or anywhere."""
    rows = Incident.objects.filter(closed_at__isnull=True)
    return rows if host is None else rows.filter(host=host)


@prepared
def all_going_on() -> QuerySet[Incident]:
    """What is open anywhere, asked cheaply."""
    return going_on()


def not_snoozed(now: datetime) -> list[Incident]:
    """What is open anywhere, without what nobody wants to hear of for a while."""
    return [row for row in all_going_on() if row.snoozed_until is None or row.snoozed_until <= now]


def hogs_on(host: str, now: datetime | None = None) -> set[str]:
    """The GPUs (by UUID) of `host` that somebody hogs now; with `now` without what is snoozed."""
    rows = all_going_on() if now is None else not_snoozed(now)
    mine = (row for row in rows if row.host == host and row.rule in HOG_RULES)
    return {row.gpu_id for row in mine if row.gpu_id is not None}


def hog_share(host: str, hours: float, now: datetime) -> float | None:
    """The part (0..1) of the last `hours` in which somebody hogged a GPU of `host`.

    None = nothing is known of this host.
    """
    since = now - timedelta(hours=hours)
    rows = Incident.objects.filter(host=host, rule__in=HOG_RULES, last_seen_at__gt=since)
    # An incident that is still open but quiet counts until the rule last held.
    spans = [
        (max(begin, since), min(end, now))
        for begin, end in rows.values_list("since_at", "last_seen_at")
    ]
    if not spans and not Gpu.objects.filter(host=host).exists():
        return None
    return _union_s(spans) / (hours * 3600)


def _union_s(spans: list[tuple[datetime, datetime]]) -> float:
    """Seconds that lie in at least one of the spans."""
    total, reached = 0.0, None
    for begin, end in sorted(spans):
        begin = begin if reached is None else max(begin, reached)
        if end > begin:
            total += (end - begin).total_seconds()
            reached = end
    return total


def of_person(name: str) -> Q:
    """Incidents that a person has to answer for: of their processes and jobs."""
    return Q(job_owner=name) | Q(job_owner="", user=name)
