"""The queue of tasks in the database, and the two clusters of django-q2 that run what is in it."""

from __future__ import annotations

import gc
import signal
import time
from collections.abc import Callable
from multiprocessing import Event
from time import sleep
from typing import Any
from uuid import uuid4

from django.conf import settings
from django.db import DatabaseError, connections
from django.db.models import QuerySet
from django.utils import timezone
from django_q.brokers.orm import ORM
from django_q.cluster import Sentinel
from django_q.conf import Conf
from django_q.models import OrmQ

from monitor.runtime.rows.database import TEXT_MARK, PreparedQuery

# Without tasks the cluster of reports ends after this time.
REPORTS_IDLE_S = 10.0


class TaskQueue(ORM):  # type: ignore[misc]
    """django-q2's own queue, with a cheap question whether a task waits.

    django-q2 compiles its query each time, which takes far longer than its answer.
    """

    def dequeue(self) -> list[tuple[int, str]] | None:
        """The next tasks; None after a pause if there are none."""
        # This closes connections that have failed.
        self.get_connection()
        if self._is_empty():
            sleep(Conf.POLL)
            return None
        tasks: list[tuple[int, str]] | None = super().dequeue()
        return tasks

    def _is_empty(self) -> bool:
        connection = connections[Conf.ORM]
        table = connection.ops.quote_name(OrmQ._meta.db_table)
        now = connection.ops.adapt_datetimefield_value(timezone.now())
        sql = f"SELECT 1 FROM {table} WHERE key = %s AND lock < %s LIMIT 1"  # noqa: S608
        with connection.cursor() as cursor:
            cursor.execute(sql, [self.list_key, now])
            return cursor.fetchone() is None


class Stop:
    """The end of a cluster of django-q2: SIGTERM, or `is_over`, which is asked at each wait.

    SIGTERM stays blocked. Its handler could run while django-q2 holds a lock that it needs, too.
    """

    def __init__(self, is_over: Callable[[], bool]) -> None:
        self._is_over = is_over
        self._is_set = False
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

    def is_set(self) -> bool:
        return self._is_set

    def wait(self, seconds: float) -> bool:
        is_told = signal.sigtimedwait({signal.SIGTERM}, seconds) is not None
        self._is_set = self._is_set or is_told or self._is_over()
        return self._is_set


class TaskSentinel(Sentinel):  # type: ignore[misc]
    def spawn_process(self, target: Callable[..., Any], *args: Any) -> object:
        """SIGTERM ends a worker: it is sent to those that take too long."""
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        try:
            return super().spawn_process(target, *args)
        finally:
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})


def run_cluster(is_over: Callable[[], bool] = lambda: False) -> int:
    """Run until SIGTERM; returns the exit code.

    The cluster of django-q2 would start its sentinel in another process, and wait for that.
    """
    gc.freeze()
    # It runs as soon as it is made.
    TaskSentinel(Stop(is_over), Event(), uuid4())
    return 0


def run_report_cluster() -> int:
    """Run the long tasks of this host, one at a time, until there are none; returns the exit code.

    The canary never waits behind them, as their queue and workers are their own.
    """
    for name, value in settings.REPORT_CLUSTER.items():
        setattr(Conf, name.upper(), value)
    busy_t = time.monotonic()

    def is_over() -> bool:
        nonlocal busy_t
        if _has_reports():
            busy_t = time.monotonic()
        return time.monotonic() - busy_t >= REPORTS_IDLE_S

    return run_cluster(is_over)


def _has_reports() -> bool:
    """A task stays in the queue until it is done. A database that is away says nothing."""
    try:
        return has_reports_to_write()
    except DatabaseError:
        return True
    finally:
        connections.close_all()


def has_reports_to_write() -> bool:
    """Whether a task waits in the queue of this host's reports, or one is being run."""
    return bool(_QUEUED.rows(settings.REPORT_CLUSTER["cluster_name"]))


def _queued(name: str) -> QuerySet[Any]:
    rows: QuerySet[Any] = OrmQ.objects.filter(key=name).values_list("pk", flat=True)
    return rows[:1]


_QUEUED: PreparedQuery[str, int] = PreparedQuery(_queued, TEXT_MARK)
