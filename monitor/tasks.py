"""Short tasks that run in the cluster's workers."""

from __future__ import annotations

from datetime import timedelta
from time import monotonic
from zoneinfo import ZoneInfo

from django.conf import settings
from django.utils import timezone
from django_q.tasks import async_task

from monitor import chores, outbox, patterns, policies, process_hours, pruning, rollups
from monitor.policy.retention import RetentionPolicy
from monitor.senders.notify import send_all


def queue(chore: str, module: str = "monitor.tasks") -> None:
    """Have a worker run the task of this name."""
    options = {"task_name": chore, "save": False, "ack_failure": True, "timeout": 100}
    async_task(f"{module}.{chore}", q_options=options)


def roll_up() -> dict[str, int]:
    """Add samples up to minutes and minutes to hours."""
    now = timezone.now()
    written = rollups.roll_up(now) | {"processhour": process_hours.roll_up(now)}
    chores.done("roll_up", str(written), timezone.now())
    return written


def find_patterns() -> int:
    """Look for use that comes again at the same time of day."""
    found = patterns.find_all(ZoneInfo(settings.TIME_ZONE), timezone.now())
    chores.done("find_patterns", f"{found} found", timezone.now())
    return found


def prune() -> dict[str, int]:
    """Delete rows that are older than settings and policy keep them."""
    config, kept = settings.CONFIG, policies.current(RetentionPolicy)
    keep = pruning.Keep(
        raw=timedelta(hours=config.raw_hours),
        minutes=timedelta(days=config.minute_days),
        hours=timedelta(days=config.hour_days),
        events=timedelta(days=kept.event_days),
        state_changes=timedelta(days=kept.state_change_days),
        messages=timedelta(days=kept.message_days),
    )
    gone = pruning.prune(keep, timezone.now())
    chores.done("prune", str(gone), timezone.now())
    return gone


def send_alerts() -> int:
    """Send the alerts that are due, for a second: others need the worker too."""
    until, tried = monotonic() + 1, 0
    while found := outbox.send_due(send_all, timezone.now()):
        tried += found
        if monotonic() > until:
            break
    return tried
