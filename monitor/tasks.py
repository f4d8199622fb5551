"""Periodic tasks that run in the workers of the task cluster."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial, wraps
from time import monotonic
from typing import TypeVar
from zoneinfo import ZoneInfo

from django.conf import settings
from django.utils import timezone
from django_q.tasks import async_task

from monitor.incidents import step as pattern_rows
from monitor.incidents.alerts import steps
from monitor.incidents.alerts.senders import send_all
from monitor.runtime.rows import periodic_tasks
from monitor.thresholds import rows as thresholds
from monitor.usage.policy.ranges import MESSAGES_KEPT, STATE_CHANGES_KEPT, RetentionPolicy
from monitor.usage.rows import rollups

R = TypeVar("R")
TIMEOUT_S = 100
# The lock row of long tasks. A task that exceeds LONGEST was killed, so its lock has expired.
LONG_CHORE, LONGEST = "long chore", timedelta(seconds=TIMEOUT_S + 5)


def queue(chore: str, module: str = "monitor.tasks") -> None:
    """Enqueue the task of this name."""
    options = {"task_name": chore, "save": False, "ack_failure": True, "timeout": TIMEOUT_S}
    async_task(f"{module}.{chore}", q_options=options)


def one_at_a_time(chore: Callable[[], R]) -> Callable[[], R | None]:
    """Run a long task only while no other long task runs; else postpone it.

    The loops, their successors and the canary need the other workers of the cluster.
    """

    @wraps(chore)
    def run() -> R | None:
        if not periodic_tasks.begin(LONG_CHORE, LONGEST, timezone.now()):
            periodic_tasks.postpone(chore.__name__)
            return None
        try:
            return chore()
        finally:
            periodic_tasks.done(LONG_CHORE, chore.__name__, timezone.now())

    return run


@one_at_a_time
def roll_up() -> dict[str, int]:
    """Aggregate samples to minutes and minutes to hours."""
    now = timezone.now()
    written = rollups.roll_up(now) | {"processhour": rollups.roll_up_processes(now)}
    periodic_tasks.done("roll_up", str(written), timezone.now())
    return written


@one_at_a_time
def find_patterns() -> int:
    """Detect recurring use at the same time of day."""
    count = pattern_rows.replace_patterns(ZoneInfo(settings.TIME_ZONE), timezone.now())
    periodic_tasks.done("find_patterns", f"{count} found", timezone.now())
    return count


@one_at_a_time
def prune() -> dict[str, int]:
    """Delete rows older than the retention periods of settings and thresholds."""
    config, retention = settings.CONFIG, thresholds.current(RetentionPolicy)
    periods = rollups.RetentionPeriods(
        raw=timedelta(hours=config.raw_hours),
        minutes=timedelta(days=config.minute_days),
        hours=timedelta(days=config.hour_days),
        events=timedelta(days=retention.event_days),
        state_changes=STATE_CHANGES_KEPT,
        messages=MESSAGES_KEPT,
    )
    deleted = rollups.prune(periods, timezone.now())
    periodic_tasks.done("prune", str(deleted), timezone.now())
    return deleted


def send_alerts() -> int:
    """Send due alerts for at most a second, because other tasks need the worker too."""
    send = partial(send_all, reach=steps.network_limits())
    until, tried = monotonic() + 1, 0
    while attempted := steps.send_due(send, timezone.now()):
        tried += attempted
        if monotonic() > until:
            break
    return tried
