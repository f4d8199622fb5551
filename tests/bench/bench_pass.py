"""CPU time of the scheduler for each trivial job, and of a submission by REST.

Run: python -m tests.bench.bench_pass [jobs]
Only this process is counted, so the figures also hold on a busy machine. Runners are real.
"""

from __future__ import annotations

import os
import select
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

SUBMISSIONS = 200
TRUE = {"argv": ["/bin/true"], "gpus": 0, "cwd": "/"}
PLACES = 2
MOST_S = 300.0


def main() -> None:
    jobs = int((*sys.argv[1:], "300")[0])
    with tempfile.TemporaryDirectory(prefix="gpucoord-bench-") as folder:
        os.environ |= {
            "GPUCOORD_DATA": folder,
            "GPUCOORD_CPU_JOBS": str(PLACES),
            "DJANGO_SETTINGS_MODULE": "gpucoord_site.settings",
        }
        import django
        from django.core.management import call_command

        django.setup()
        call_command("migrate", verbosity=0)
        _measure(jobs)


def _measure(jobs: int) -> None:
    import logging

    from django.contrib.auth.models import User

    logging.disable(logging.INFO)
    user = User.objects.create_superuser("bench", "", "bench")
    _drain(user, 20)
    cpu_s, passes = _drain(user, jobs)
    print(f"scheduler     {1000 * cpu_s / jobs:6.2f} ms of CPU and {passes / jobs:.2f} passes")
    view_s, submit_s = _requests(user)
    print(f"empty view    {1000 * view_s:6.2f} ms of CPU")
    print(f"submission    {1000 * submit_s:6.2f} ms of CPU")


def _drain(user: Any, jobs: int) -> tuple[float, int]:
    """CPU seconds and passes until all of so many jobs have ended."""
    from django.db import transaction
    from django.utils import timezone

    from gpucoord_site.service import slices
    from gpucoord_site.service.slices import PATIENCE_S
    from monitor.runtime.probes import datagrams
    from monitor.runtime.probes.process_identity import me
    from monitor.runtime.rows import leases
    from monitor.runtime.rows.wakeups import Listener
    from scheduler.models import Job
    from scheduler.submission.intake import actions

    actions.submit_all([TRUE] * jobs, user, timezone.now())
    loop = slices.table()["scheduler"]
    held = leases.acquire(loop.lease(), me(), timezone.now())
    assert held is not None

    @contextmanager
    def guarded() -> Iterator[None]:
        with transaction.atomic():
            leases.renew(held, timezone.now())
            yield

    step = loop.new_step(guarded)
    step.open()
    cpu_s, passes, begin = 0.0, 0, time.monotonic()
    with Listener(loop.wake or "") as heard:
        while Job.objects.exclude(state="finished").exists():
            assert time.monotonic() - begin < MOST_S
            before = time.process_time()
            step.step(timezone.now())
            cpu_s, passes = cpu_s + time.process_time() - before, passes + 1
            select.select([heard], [], [], 1)
            if all(payload == datagrams.PATIENT for payload in heard.drain()):
                # As the loop does.
                select.select([heard], [], [], PATIENCE_S)
                heard.drain()
    step.close()
    leases.release(held, timezone.now())
    return cpu_s, passes


def _requests(user: Any) -> tuple[float, float]:
    """CPU seconds of an empty view and of a submission, with all middleware."""
    from django.test import Client
    from django.utils import timezone

    from monitor.gpus.rows import snapshot as snapshots
    from monitor.owners.rows import create_token
    from tests.builders import process, snapshot

    # As a server with 8 GPUs and 24 processes has it.
    snapshots.record(snapshot(8, [process(5000 + i, on=i % 8) for i in range(24)]))
    _, token = create_token(user, timezone.now())
    client = Client(headers={"authorization": f"Bearer {token}"}, SERVER_NAME="localhost")

    def view() -> None:
        client.get("/healthz")

    def submit() -> None:
        answer = client.post("/api/jobs/", TRUE, content_type="application/json")
        assert answer.status_code == 201, answer.content

    return _each(view), _each(submit)


def _each(action: Callable[[], None]) -> float:
    action()
    before = time.process_time()
    for _ in range(SUBMISSIONS):
        action()
    return (time.process_time() - before) / SUBMISSIONS


if __name__ == "__main__":
    main()
