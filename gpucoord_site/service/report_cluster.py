"""The process for long tasks: a django-q2 cluster of its own, which runs on demand."""

from __future__ import annotations

import gc
import time

from django.conf import settings
from django.db import DatabaseError, connections

# Without tasks the cluster ends after this time.
IDLE_S = 30.0


def has_reports_to_write() -> bool:
    """Whether a task waits in the queue of this host's reports, or one is being run."""
    from django_q.models import OrmQ

    return bool(OrmQ.objects.filter(key=settings.REPORT_CLUSTER["cluster_name"]).exists())


def run_report_cluster() -> int:
    """Run the long tasks of this host, one at a time, until there are none; returns the exit code.

    The canary never waits behind them, as their queue and workers are their own.
    """
    from django_q.cluster import Cluster
    from django_q.conf import Conf

    for name, value in settings.REPORT_CLUSTER.items():
        setattr(Conf, name.upper(), value)
    gc.freeze()
    cluster = Cluster()
    cluster.start()
    busy_t = time.monotonic()
    while time.monotonic() - busy_t < IDLE_S:
        cluster.sentinel.join(1.0)
        if not cluster.sentinel.is_alive():
            return 1 if cluster.sentinel.exitcode else 0
        if _is_busy():
            busy_t = time.monotonic()
    cluster.stop()
    return 0


def _is_busy() -> bool:
    """A task stays in the queue until it is done. A database that is away says nothing."""
    try:
        return has_reports_to_write()
    except DatabaseError:
        return True
    finally:
        connections.close_all()
