"""Short tasks that run in the cluster's workers."""

from __future__ import annotations

from datetime import timedelta

from django.conf import settings
from django.utils import timezone
from django_q.tasks import async_task

from monitor import pruning

PRUNE = "monitor.tasks.prune"


def queue_prune() -> None:
    """Have old rows deleted by a worker."""
    options = {"task_name": "prune", "save": False, "ack_failure": True, "timeout": 100}
    async_task(PRUNE, q_options=options)


def prune() -> dict[str, int]:
    """Delete rows that are older than the settings keep them."""
    keep = pruning.Keep(raw=timedelta(hours=settings.CONFIG.raw_hours))
    gone = pruning.prune(keep, timezone.now())
    pruning.done("prune", str(gone), timezone.now())
    return gone
