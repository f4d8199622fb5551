"""Ask for a clean-up, or for its preview."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from scheduler.disk import rows
from scheduler.disk.steps import folders
from scheduler.models import CleaningRun

TASK = "clean_disks"
MODULE = "scheduler.tasks"
Queue = Callable[[str, str], None]


class UnknownFolder(ValueError):
    """No such folder is watched; the text says which are."""


def clean(
    host: str, path: str, *, dry_run: bool, by: str, now: datetime, queue: Queue | None = None
) -> CleaningRun:
    """A run for the host, which its controller starts; `queue` starts it on this host at once.

    Raises UnknownFolder or scheduler.disk.rows.Busy.
    """
    watched = [row.path for row in folders.watched(host)]
    if path and path not in watched:
        raise UnknownFolder(f"{path} is not watched on {host}. Watched: {', '.join(watched)}.")
    run = rows.request(host, path, dry_run=dry_run, by=by, now=now)
    if queue is not None:
        queue(TASK, MODULE)
    return run
