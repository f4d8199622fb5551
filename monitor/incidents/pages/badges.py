"""Badges of open incidents for processes and GPUs."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from django.db import DatabaseError

from monitor.incidents import facts as incident_facts
from monitor.incidents.facts import (
    HOG_RULES,
    IDLE_HELD,
    SUSTAINED,
    Badge,
    Badges,
    Rank,
    rank,
)
from monitor.incidents.rows import open as incident_open
from monitor.models import Incident


def current(now: datetime) -> Badges:
    """The badges of all open incidents that are not muted."""
    return of(incident_open.not_snoozed(now))


def alert_count(now: datetime) -> int | None:
    """All open incidents if any of them harms other users, else 0. None: no database.

    Error pages show it too, so a database error raises nothing.
    """
    try:
        badges = current(now)
    except DatabaseError:
        return None
    return badges.open if badges.harmful else 0


def of(rows: Iterable[Incident]) -> Badges:
    """The worst badge of each process and GPU. Equal badges: the most specific rule wins."""
    processes: dict[tuple[str, int], Badge] = {}
    gpus: dict[str, Badge] = {}
    all_rows = list(rows)
    current_rows = sorted((row for row in all_rows if row.over_at is None), key=_specific_last)
    badges = [badge_of(row) for row in current_rows]
    for row, badge in zip(current_rows, badges, strict=True):
        if row.gpu_id and row.pid:
            processes[row.gpu_id, row.pid] = badge
        if row.gpu_id and (row.gpu_id not in gpus or badge.rank >= gpus[row.gpu_id].rank):
            gpus[row.gpu_id] = badge
    harmful = [badge for badge in badges if badge.is_warning]
    worst = max(harmful, key=lambda badge: badge.rank, default=None)
    return Badges(
        processes,
        gpus,
        open=incident_open.count(all_rows),
        harmful=len({badge.incident for badge in harmful}),
        worst=worst,
    )


def badge_of(row: Incident) -> Badge:
    return Badge(
        word=incident_facts.badge(row.rule, is_hog=row.is_hog),
        severity=row.severity,
        incident=row.lead_id or row.pk,
        text=row.text,
        title=incident_facts.title(row.rule, is_hog=row.is_hog),
        gpu_uuid=row.gpu_id,
        idle_since=row.since_at if row.rule == IDLE_HELD else None,
        since=row.since_at,
        waited_s=row.waited_s,
    )


def _specific_last(row: Incident) -> tuple[int, int, bool, bool, Rank, int]:
    worst = rank(row.severity, row.waited_s, row.since_at)
    return *worst[:2], row.rule in HOG_RULES, row.rule == SUSTAINED, worst, -row.pk


def worst_first(row: Incident) -> tuple[int, int, datetime, int]:
    severity, harm, _ = rank(row.severity, row.waited_s, row.since_at)
    return -severity, -harm, row.since_at, row.pk


def open_of(name: str) -> list[Incident]:
    """The open incidents of a user, worst first."""
    rows = (
        incident_open.open_incidents().filter(incident_open.of_person(name)).select_related("gpu")
    )
    return sorted(rows, key=worst_first)
