"""Periodic tasks. The first controller of any host that finds a task due queues it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from importlib import import_module
from typing import cast

from django.db.models import Q

from monitor.models import PeriodicTask
from monitor.runtime.rows.database import TEXT_MARK, PreparedQuery

# Functions of other apps, as `module:function`; each gets `now` and queues what is due.
_queuers: list[str] = []


def register(path: str) -> None:
    """Have the controllers call `module:function` at each tick; imported when first called."""
    if path not in _queuers:
        _queuers.append(path)


def queuers() -> tuple[str, ...]:
    return tuple(_queuers)


def queuer(path: str) -> Callable[[datetime], object]:
    """The registered function."""
    module, _, name = path.partition(":")
    return cast(Callable[[datetime], object], getattr(import_module(module), name))


_QUEUED_AT: PreparedQuery[str, datetime] = PreparedQuery(
    lambda name: PeriodicTask.objects.filter(name=name).values_list("queued_at", flat=True),
    TEXT_MARK,
)


def due(name: str, every: timedelta, now: datetime, first_after: timedelta = timedelta()) -> bool:
    """Whether a task must be queued now; True for one caller only.

    `first_after`: from the first question until a task that has never been queued is due.
    """
    if any(queued_at > now - every for queued_at in _QUEUED_AT.rows(name)):
        return False
    PeriodicTask.objects.bulk_create(
        [PeriodicTask(name=name, queued_at=now - every + first_after)], ignore_conflicts=True
    )
    rows = PeriodicTask.objects.filter(name=name, queued_at__lte=now - every)
    return rows.update(queued_at=now) == 1


def done(name: str, result: str, now: datetime) -> None:
    PeriodicTask.objects.filter(name=name).update(done_at=now, result=result)


def postpone(name: str) -> None:
    """Make a queued task that could not run due again immediately."""
    PeriodicTask.objects.filter(name=name).update(
        queued_at=datetime.min.replace(year=1970, tzinfo=UTC)
    )


def begin(name: str, longest: timedelta, now: datetime) -> bool:
    """Start a task that must not run concurrently. True: the caller runs it, then calls `done`."""
    PeriodicTask.objects.bulk_create(
        [PeriodicTask(name=name, queued_at=now - longest)], ignore_conflicts=True
    )
    free = PeriodicTask.objects.filter(name=name).exclude(_busy(longest, now))
    return free.update(queued_at=now, done_at=None) == 1


def is_busy(name: str, longest: timedelta, now: datetime) -> bool:
    """Whether the task is running. A run longer than `longest` counts as dead."""
    return PeriodicTask.objects.filter(_busy(longest, now), name=name).exists()


def _busy(longest: timedelta, now: datetime) -> Q:
    return Q(done_at__isnull=True, queued_at__gt=now - longest)
