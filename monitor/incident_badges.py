"""Rows: what cards and tables say beside a process or GPU of which an incident is open."""

from __future__ import annotations

from datetime import datetime

from django.db.models import Q

from monitor import incidents
from monitor.badges import Badge, Badges
from monitor.models import Incident
from monitor.policy.hog_rules import BADGES, HOG_RULES, SUSTAINED

_COLUMNS = ("id", "rule", "gpu_id", "pid", "severity", "text")


def current(now: datetime) -> Badges:
    """Of all open incidents that nobody snoozed."""
    going_on = incidents.going_on().exclude(Q(snoozed_until__gt=now))
    rows = list(going_on.values_list(*_COLUMNS))
    processes: dict[tuple[str, int], Badge] = {}
    gpus: dict[str, Badge] = {}
    # The most telling last: a hog's word stands over that it also holds much memory.
    for id_, rule, gpu, pid, severity, text in sorted(rows, key=_telling):
        badge = Badge(BADGES.get(rule, rule), severity, id_, text)
        if gpu and pid:
            processes[gpu, pid] = badge
        if gpu and rule in HOG_RULES:
            gpus[gpu] = badge
    harmful = sum(severity != "info" for *_, severity, _ in rows)
    return Badges(processes, gpus, open=len(rows), harmful=harmful)


def _telling(row: tuple[object, ...]) -> tuple[bool, bool, int]:
    rule, id_ = row[1], row[0]
    return (rule in HOG_RULES, rule == SUSTAINED, -int(str(id_)))


def open_of(name: str) -> list[Incident]:
    """What a person is asked to change, the worst first."""
    rows = incidents.going_on().filter(incidents.of_person(name)).select_related("gpu")
    worst = {"error": 0, "warning": 1}
    return sorted(rows, key=lambda row: (worst.get(row.severity, 2), row.since_at))
