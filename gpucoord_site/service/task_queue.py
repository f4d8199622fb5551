"""The queue of tasks in the database, and the two clusters of django-q2 that run what is in it."""

from __future__ import annotations

import gc
import logging
import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from multiprocessing import Event
from time import sleep
from typing import Any
from uuid import uuid4

from django.conf import settings
from django.db import DatabaseError, connections
from django.db.models import QuerySet
from django.utils import timezone
from django_q.brokers import get_broker
from django_q.brokers.orm import ORM
from django_q.cluster import Sentinel
from django_q.conf import Conf
from django_q.models import OrmQ
from django_q.tasks import async_task

from gpucoord_site.service import slices
from monitor.models import Lease
from monitor.runtime.probes.process_identity import cpu_ticks, is_alive
from monitor.runtime.rows import leases
from monitor.runtime.rows.database import TEXT_MARK, PreparedQuery, compiled_once
from scheduler.runner import process_tree

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


# Keeps the loops running from outside the task cluster: queues missing slices, tests the cluster.
#
# A cluster can be dead although all its processes live (a worker died while it held the queue's
# lock). Only a task that was taken, run and acknowledged shows that it works: the canary.


CANARY_EVERY_S = 10.0
CANARY_PATIENCE_S = 8.0
# A cluster that has just started forks for a moment before it takes tasks.
REPEAT_S = 2.0
# How long a holder with an expired lease may hang before its worker is replaced.
SILENT_S = 4.0
logger = logging.getLogger(__name__)


def canary() -> None:
    """A task without an effect. Its acknowledgement shows that tasks are taken and run."""


class Watchdog:
    def __init__(self) -> None:
        self._queued_at: dict[str, float] = {}
        self._silent_since: dict[str, float] = {}
        self._canary: tuple[int, float] | None = None
        self._canary_due = 0.0
        self.canary_t: float | None = None
        self.canary_s: float | None = None

    def cluster_starts(self) -> None:
        """Forget the canary of the previous cluster, and queue all slices anew."""
        leases.drop_host(settings.CONFIG.node, timezone.now())
        _remove_queued_slices()
        self._queued_at.clear()
        self._silent_since.clear()
        self._canary, self._canary_due = None, time.monotonic() + CANARY_EVERY_S / 2
        self.ensure_loops()

    def ensure_loops(self) -> None:
        """Queue a slice of each loop without a holder; replace a worker that hangs."""
        now, at = timezone.now(), time.monotonic()
        rows = {row.loop: row for row in _leases(settings.CONFIG.node)}
        for name in slices.table():
            row = rows.get(name)
            if row and self._is_in_hands(row, now, at):
                continue
            if at - self._queued_at.get(name, -REPEAT_S) >= REPEAT_S:
                self._queued_at[name] = at
                slices.enqueue(name)

    def _is_in_hands(self, row: Lease, now: datetime, at: float) -> bool:
        """Whether a living process holds the lease. A silent holder gets a moment, then SIGKILL."""
        if row.pid is None:
            return False
        if not is_alive(row.pid, row.start_ticks, row.boot_id):
            # Logged afterwards, because a database that refuses it would have it logged each time.
            leases.free_dead(row.host, now)
            text = "The process that ran the %s is gone; another takes over"
            logger.warning(text, row.loop, extra={"kind": "LOOP_ORPHANED", "loop": row.loop})
            return False
        if row.expires_at > now:
            self._silent_since.pop(row.loop, None)
        elif at - self._silent_since.setdefault(row.loop, at) >= SILENT_S:
            about = {"kind": "LOOP_HUNG", "loop": row.loop, "pid": row.pid}
            text = "The %s hangs in process %s, which is replaced"
            logger.error(text, row.loop, row.pid, extra=about)
            self._silent_since.pop(row.loop)
            # By its start time too, because the pid may have been reused.
            process_tree.signal_one(row.pid, row.start_ticks or 0, signal.SIGKILL)
        return True

    def is_cluster_dead(self) -> bool:
        """Send a canary at intervals; True if one was not acknowledged in time."""
        at = time.monotonic()
        if self._canary is None:
            if at >= self._canary_due:
                self._canary, self._canary_due = (_send_canary(), at), at + CANARY_EVERY_S
            return False
        key, sent_at = self._canary
        if not OrmQ.objects.filter(pk=key).exists():
            self._canary, self.canary_t, self.canary_s = None, time.time(), at - sent_at
            return False
        if at - sent_at <= CANARY_PATIENCE_S:
            return False
        self._canary, self._canary_due = None, at + CANARY_EVERY_S
        return True


@compiled_once
def _leases(host: str) -> QuerySet[Lease]:
    return Lease.objects.filter(host=host)


class _Remembering:
    """A broker that keeps the key of the row that `async_task` adds but does not return."""

    def __init__(self) -> None:
        self._broker = get_broker()
        self.list_key = self._broker.list_key
        self.key = 0

    def enqueue(self, task: Any) -> int:
        self.key = int(self._broker.enqueue(task))
        return self.key


def _send_canary() -> int:
    broker = _Remembering()
    options = {"broker": broker, "task_name": "canary", "save": False, "ack_failure": True}
    async_task("gpucoord_site.service.task_queue.canary", q_options=options)
    return broker.key


def _remove_queued_slices() -> None:
    """Remove the slices of a killed cluster, which would return once their locks expire."""
    queued = OrmQ.objects.filter(key=get_broker().list_key)
    ours = (slices.SLICE, "gpucoord_site.service.task_queue.canary")
    OrmQ.objects.filter(pk__in=[row.pk for row in queued if row.func() in ours]).delete()


# Requests /healthz from the web process at intervals; no answer for a while means that it hangs.
#
# Nothing here blocks: the supervisor calls `is_stuck` in its loop.

ASK_EVERY_S = 3.0
# Unanswered requests in a row after which the process is replaced, and the time limit of each.
MOST_UNANSWERED = 3
PATIENCE_S = 4.0
# A process that has just started imports and connects first. It uses CPU time meanwhile; one that
# uses none is stuck.
START_S = 60.0
REQUEST = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


class WebWatch:
    """Watches the process behind the socket that is bound to `address`."""

    def __init__(
        self, listening: socket.socket, cpu_of: Callable[[int], int | None] = cpu_ticks
    ) -> None:
        self._cpu_of = cpu_of
        self._cpu: int | None = None
        self._family = listening.family
        self._address = _reachable(listening.getsockname())
        self._connection: socket.socket | None = None
        self._left = REQUEST
        self._asked_at = self._started_at = self._worked_at = time.monotonic()
        self._has_answered = False
        self._unanswered = 0

    def starts(self) -> None:
        """Reset for a new process."""
        self._close()
        self._cpu = None
        self._asked_at = self._started_at = self._worked_at = time.monotonic()
        self._has_answered = False
        self._unanswered = 0

    def is_stuck(self, pid: int) -> bool:
        """Send a request at intervals; True after MOST_UNANSWERED unanswered ones."""
        at = time.monotonic()
        if self._is_starting(at):
            self._note_work(pid, at)
        if self._connection is None:
            if at - self._asked_at >= ASK_EVERY_S:
                self._ask(at)
            return False
        if self._is_answered():
            self._close()
            self._has_answered, self._unanswered = True, 0
        elif at - self._asked_at >= PATIENCE_S:
            self._close()
            self._unanswered += 1
            if self._is_over(at):
                return True
            self._ask(at)
        return False

    def _is_over(self, at: float) -> bool:
        if self._is_starting(at):
            return at - self._worked_at >= (MOST_UNANSWERED - 1) * PATIENCE_S
        return self._unanswered >= MOST_UNANSWERED

    def _is_starting(self, at: float) -> bool:
        return not self._has_answered and at - self._started_at < START_S

    def _note_work(self, pid: int, at: float) -> None:
        """Remember when the process last used CPU time."""
        cpu = self._cpu_of(pid)
        if cpu != self._cpu:
            self._cpu, self._worked_at = cpu, at

    def _ask(self, at: float) -> None:
        self._asked_at, self._left = at, REQUEST
        self._connection = socket.socket(self._family, socket.SOCK_STREAM)
        self._connection.setblocking(False)
        with suppress(OSError):
            self._connection.connect(self._address)

    def _is_answered(self) -> bool:
        """Whether any byte of an answer arrived; its content does not matter."""
        if self._connection is None:
            return False
        try:
            if self._left:
                self._left = self._left[self._connection.send(self._left) :]
            return bool(self._connection.recv(1))
        except OSError:
            return False

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _reachable(bound: tuple[str, int] | tuple[str, int, int, int]) -> tuple[str, int]:
    """An address at which a socket that listens on all addresses can be reached."""
    host, port = bound[:2]
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host), port  # noqa: S104
