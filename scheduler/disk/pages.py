"""Page: the space of the watched folders of each host."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import require_safe

from monitor.journal.rows import events
from monitor.thresholds import rows as thresholds
from scheduler.disk import rows
from scheduler.disk.facts import DiskLevel
from scheduler.disk.policy import DiskPolicy
from scheduler.models import WatchedDisk

SHOWN = 10
SHAPES = {
    DiskLevel.NORMAL: "ok",
    DiskLevel.WARNING: "warning",
    DiskLevel.CLEANING: "warning",
    DiskLevel.BLOCKED: "failing",
    DiskLevel.UNKNOWN: "unknown",
}
WORDS = {
    DiskLevel.NORMAL: "normal",
    DiskLevel.WARNING: "low on space",
    DiskLevel.CLEANING: "clean-up due",
    DiskLevel.BLOCKED: "full: jobs wait",
    DiskLevel.UNKNOWN: "unknown",
}


@dataclass(frozen=True, slots=True)
class DiskRow:
    """A line of the table. is_old: the controller of the host has not read it lately."""

    disk: WatchedDisk
    shape: str
    word: str
    is_old: bool


def _row(disk: WatchedDisk, now: datetime) -> DiskRow:
    is_old = now - disk.at > rows.STALE_AFTER
    level = DiskLevel.UNKNOWN if is_old or disk.problem else DiskLevel(disk.level)
    return DiskRow(disk, SHAPES[level], WORDS[level], is_old)


def _verdict(lines: list[DiskRow]) -> DiskRow | None:
    """The worst line."""
    order = ("failing", "warning", "unknown", "ok")
    return min(lines, key=lambda line: order.index(line.shape), default=None)


@require_safe
def disks(request: HttpRequest) -> HttpResponse:
    now = timezone.now()
    lines = [_row(disk, now) for disk in rows.watched()]
    kinds = ("DISK_SPACE_LOW", "DISK_SPACE_OK")
    changes = [event for kind in kinds for event in events.recent(SHOWN, kind=kind)]
    context = {
        "rows": lines,
        "worst": _verdict(lines),
        "policy": thresholds.current(DiskPolicy),
        "changes": sorted(changes, key=lambda event: event.at, reverse=True)[:SHOWN],
    }
    return render(request, "scheduler/disks.html", context)
