"""Rows: what cards and tables say beside a process or GPU of which an incident is open."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from monitor import incidents
from monitor.models import Incident
from monitor.pages.badges import Badge, Badges
from monitor.policy.hog_rules import BADGES, HOG_RULES, SUSTAINED

_WORST = {"error": 0, "warning": 1}


def current(now: datetime) -> Badges:
    """Of all open incidents that nobody snoozed."""
    return of(incidents.not_snoozed(now))


def of(rows: Iterable[Incident]) -> Badges:
    processes: dict[tuple[str, int], Badge] = {}
    gpus: dict[str, Badge] = {}
    # The most telling last: a hog's word stands over that it also holds much memory.
    found = sorted(rows, key=_telling)
    for row in found:
        badge = Badge(BADGES.get(row.rule, row.rule), row.severity, row.pk, row.text)
        if row.gpu_id and row.pid:
            processes[row.gpu_id, row.pid] = badge
        if row.gpu_id and row.rule in HOG_RULES:
            gpus[row.gpu_id] = badge
    harmful = sum(row.severity != "info" for row in found)
    return Badges(processes, gpus, open=len(found), harmful=harmful)


def _telling(row: Incident) -> tuple[bool, bool, int]:
    return (row.rule in HOG_RULES, row.rule == SUSTAINED, -row.pk)


def worst_first(row: Incident) -> tuple[int, datetime, int]:
    return (_WORST.get(row.severity, 2), row.since_at, row.pk)


def open_of(name: str) -> list[Incident]:
    """What a person is asked to change, the worst first."""
    rows = incidents.going_on().filter(incidents.of_person(name)).select_related("gpu")
    return sorted(rows, key=worst_first)
