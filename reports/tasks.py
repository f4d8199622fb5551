"""Long tasks of the reports, in the report cluster of a host; and what queues them."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any
from zlib import crc32
from zoneinfo import ZoneInfo

from django.conf import settings
from django.utils import timezone
from django_q.tasks import async_task

from monitor.runtime.rows import extensions, periodic_tasks

ENABLED = "reports.capacity.step:is_enabled"
CAPACITY_EVERY = timedelta(days=1)
REPORTS_EVERY = timedelta(minutes=1)
# A service that has just started for the first time has more to do.
FIRST_AFTER = timedelta(minutes=1)


def queue(task: str, *args: Any) -> None:
    """Enqueue a function of this module for this host."""
    options = {
        "task_name": task,
        "cluster": settings.REPORT_CLUSTER["cluster_name"],
        "save": False,
        "ack_failure": True,
        "timeout": settings.REPORT_CLUSTER["timeout"],
    }
    async_task(f"reports.tasks.{task}", *args, q_options=options)


def queue_due(now: datetime) -> tuple[str, ...]:
    """Called by the controller of each host; returns the names of the queued tasks."""
    host, queued = settings.CONFIG.node, []
    name = f"capacity {host[:20]} {crc32(host.encode()):08x}"
    is_planned = any(is_enabled() for is_enabled in extensions.parts(ENABLED))
    if is_planned and periodic_tasks.due(name, CAPACITY_EVERY, now, FIRST_AFTER):
        request_capacity(now)
        queued.append("plan_capacity")
    for is_due in extensions.parts("reports.schedule.step:is_due"):
        if periodic_tasks.due("look for due reports", REPORTS_EVERY, now) and is_due(now):
            queue("make_reports")
            queued.append("make_reports")
    return tuple(queued)


def request_capacity(now: datetime) -> datetime:
    """Have the capacity figures of this host computed; since when that is so.

    A request that is younger than its task may last is not repeated.
    """
    from reports.capacity import rows as capacity_rows

    waiting = capacity_rows.newest(settings.CONFIG.node)
    longest = timedelta(seconds=settings.REPORT_CLUSTER["timeout"])
    if waiting and waiting.requested_at and waiting.requested_at > now - longest:
        return waiting.requested_at
    capacity_rows.request(settings.CONFIG.node, now)
    queue("plan_capacity")
    return now


def plan_capacity() -> None:
    """Compute and store the capacity figures of this host."""
    from reports.capacity import step as capacity_step

    capacity_step.compute(settings.CONFIG.node, timezone.now(), ZoneInfo(settings.TIME_ZONE))


def make_reports() -> int:
    """Make, store and send the reports that are due; one host at a time."""
    from reports.schedule import step as delivery

    longest = timedelta(seconds=settings.REPORT_CLUSTER["timeout"])
    if not periodic_tasks.begin("make reports", longest, timezone.now()):
        return 0
    made = 0
    try:
        made = delivery.make_due(timezone.now())
    finally:
        periodic_tasks.done("make reports", f"{made} made", timezone.now())
    return made
