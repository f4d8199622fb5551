"""Pages: the space of the watched folders of each host, and clean-ups."""

from __future__ import annotations

from datetime import datetime

from django.conf import settings
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.views.decorators.http import require_POST, require_safe
from msgspec import Struct

from monitor import tasks
from monitor.journal.rows import events
from monitor.thresholds import rows as thresholds
from scheduler.disk import steps
from scheduler.disk.policy import CleaningPolicy, DiskLevel, DiskPolicy
from scheduler.models import CleaningRun, WatchedDisk

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


class DiskRow(Struct, frozen=True):
    """A line of the table. is_old: the controller of the host has not read it lately."""

    disk: WatchedDisk
    shape: str
    word: str
    is_old: bool


def _row(disk: WatchedDisk, now: datetime) -> DiskRow:
    is_old = now - disk.at > steps.STALE_AFTER
    level = DiskLevel.UNKNOWN if is_old or disk.problem else DiskLevel(disk.level)
    return DiskRow(disk, SHAPES[level], WORDS[level], is_old)


def _verdict(lines: list[DiskRow]) -> DiskRow | None:
    """The worst line."""
    order = ("failing", "warning", "unknown", "ok")
    return min(lines, key=lambda line: order.index(line.shape), default=None)


@require_safe
def disks(request: HttpRequest) -> HttpResponse:
    now = timezone.now()
    lines = [_row(disk, now) for disk in steps.watched_disks()]
    kinds = ("DISK_SPACE_LOW", "DISK_SPACE_OK")
    changes = [event for kind in kinds for event in events.recent(SHOWN, kind=kind)]
    context = {
        "rows": lines,
        "worst": _verdict(lines),
        "policy": thresholds.current(DiskPolicy),
        "cleaning": thresholds.current(CleaningPolicy),
        "runs": steps.recent() if request.user.is_staff else [],
        "hosts": sorted({line.disk.host for line in lines}),
        "changes": sorted(changes, key=lambda event: event.at, reverse=True)[:SHOWN],
    }
    return render(request, "scheduler/disks.html", context)


@require_POST
def clean(request: HttpRequest) -> HttpResponse:
    """Start a clean-up or its preview; operators only."""
    if not request.user.is_staff:
        raise PermissionDenied
    here, host = settings.CONFIG.node, request.POST.get("host", "") or settings.CONFIG.node
    dry_run = request.POST.get("do") != "clean"
    queue = tasks.queue if host == here else None
    by, now = request.user.get_username(), timezone.now()
    try:
        run = steps.clean(
            host, request.POST.get("path", ""), dry_run=dry_run, by=by, now=now, queue=queue
        )
    except steps.UnknownFolder as error:
        messages.error(request, str(error))
        return redirect("disks")
    except steps.Busy as error:
        messages.info(request, str(error))
        run = error.run
    else:
        messages.success(
            request, "The preview is queued." if dry_run else "The clean-up is queued."
        )
    return redirect("disk-run", pk=run.pk)


@require_safe
def run(request: HttpRequest, pk: int) -> HttpResponse:
    """Files that a clean-up deleted or spared, or would delete; operators only."""
    if not request.user.is_staff:
        raise PermissionDenied
    row = CleaningRun.objects.filter(pk=pk).first() if pk < 2**63 else None
    if row is None:
        raise Http404(f"There is no clean-up {pk}.")
    is_open = row.state in (steps.State.WAITING, steps.State.RUNNING)
    context = {
        "run": row,
        "is_open": is_open,
        "more": max(0, sum(row.figures.values()) - len(row.listed)),
        "goal": thresholds.current(CleaningPolicy).until_pct,
    }
    return render(request, "scheduler/disk_run.html", context)
