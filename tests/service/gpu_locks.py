"""Run as a program on a PostgreSQL database of its own: the rows of GPUs are locked in one order.

Another session locks the first GPU. A writer of both GPUs must then wait without holding the
second one. Prints the name of each writer for which that held.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import django
import psycopg

LOCK = "UPDATE monitor_gpu SET problem = problem WHERE uuid = %s"
WAITS = (
    "SELECT count(*) FROM pg_stat_activity"
    " WHERE datname = current_database() AND wait_event_type = 'Lock'"
)


def main() -> None:
    django.setup()
    from django.contrib.auth.models import User
    from django.core.management import call_command
    from django.db import connection, transaction
    from django.utils import timezone

    from monitor.gpus.rows import snapshot as snapshots
    from scheduler.execution.policy import Action
    from scheduler.execution.steps.executor import Executor, JobAction
    from scheduler.execution.steps.specs import SpecWriter
    from tests import jobs_made
    from tests.builders import gpu, gpu_uuid, host, snapshot

    call_command("migrate", verbosity=0)
    owner = User.objects.create_user("alice")
    indices = sorted((0, 1), key=gpu_uuid)
    first, second = (gpu_uuid(index) for index in indices)
    backwards = [gpu(index) for index in reversed(indices)]
    seen = snapshot(backwards, host=host(name="gpubox"), at=timezone.now())
    snapshots.record(seen)

    def sample() -> None:
        with transaction.atomic():
            snapshots.record(seen)

    def end_jobs() -> None:
        data = Path(os.environ["GPUCOORD_DATA"])
        specs = SpecWriter(data=data, run_as="service", grace_s=1.0, wake_folder=data)
        jobs = [jobs_made.running(owner, on=(index,)) for index in reversed(indices)]
        attempts = [job.attempts.get() for job in jobs]
        Executor(transaction.atomic, "gpubox", specs)._write(
            [
                JobAction(each, Action.NONE, lambda each=each: snapshots.count_task(each.gpu_uuids))
                for each in attempts
            ],
            timezone.now(),
        )

    def closed(writer: Callable[[], None]) -> None:
        writer()
        connection.close()

    def is_waiting() -> bool:
        """Asked in a transaction of its own, because a transaction sees one state only."""
        with psycopg.connect(os.environ["DATABASE_URL"]) as watch:
            return bool(watch.execute(WAITS).fetchall()[0][0])

    with psycopg.connect(os.environ["DATABASE_URL"]) as other, ThreadPoolExecutor(1) as thread:
        for writer in (sample, end_jobs):
            other.execute(LOCK, [first])
            writes = thread.submit(closed, writer)
            while not is_waiting():
                assert not writes.done(), writes.result()
                time.sleep(0.02)
            other.execute("SET LOCAL lock_timeout = '5s'")
            other.execute(LOCK, [second])
            other.commit()
            writes.result(20)
            sys.stdout.write(f"{writer.__name__}\n")


if __name__ == "__main__":
    main()
