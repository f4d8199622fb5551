"""Cost of a scrape of /metrics: python -m tests.bench.bench_metrics.

Server time of the whole request (middleware, access, rows, text), on a SQLite database with
gpucoord's settings; exits with 1 when the median is above the limit.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from datetime import timedelta

GPUS, PROCESSES, JOBS, SCRAPES = 8, 24, 1000, 200
LIMIT_MS = 20


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="gpucoord-bench-") as folder:
        os.environ |= {"GPUCOORD_DATA": folder, "GPUCOORD_PROBE": "simulated"}
        os.environ["DJANGO_SETTINGS_MODULE"] = "gpucoord_site.settings"
        import django
        from django.core.management import call_command

        django.setup()
        call_command("migrate", verbosity=0)
        from monitor.journal.rows import events

        with events.unlogged():
            fill()
        return measure()


def fill() -> None:
    """A few readings, loops that tick, and jobs in every state."""
    from django.conf import settings
    from django.contrib.auth.models import User
    from django.db import transaction
    from django.utils import timezone

    from monitor.gpus.sampling.probes.host import HostProbe
    from monitor.gpus.sampling.probes.simulated import SimulatedProbe
    from monitor.gpus.sampling.step import Sampler
    from monitor.models import Lease
    from scheduler.facts.jobs import NewJob
    from scheduler.jobs.rows import changes as job_queue
    from tests.jobs_made import finished

    now, node = timezone.now(), settings.CONFIG.node
    sampler = Sampler(
        transaction.atomic, SimulatedProbe(GPUS, processes=PROCESSES), HostProbe(node)
    )
    sampler.open()
    for second in range(3):
        sampler.step(now + timedelta(seconds=second))
    for loop in ("sampler", "controller", "scheduler"):
        Lease.objects.create(
            name=f"{loop}:{node}", loop=loop, host=node, expires_at=now, last_tick_at=now,
            lateness_p50_ms=1, lateness_p99_ms=2,
        )  # fmt: skip
    alice = User.objects.create_user("alice")
    for number in range(JOBS // 2):
        finished(alice, ("succeeded", "failed", "lost")[number % 3])
    for _ in range(JOBS // 2):
        job_queue.submit(NewJob(command="true"), alice, now)


def measure() -> int:
    from django.test import Client

    client, times = Client(SERVER_NAME="localhost"), []
    for _ in range(SCRAPES):
        began = time.perf_counter()
        response = client.get("/metrics")
        times.append((time.perf_counter() - began) * 1000)
        assert response.status_code == 200, response.content
    text = response.content.decode()
    samples = sum(not line.startswith("#") for line in text.splitlines())
    told = [x for x in text.splitlines() if x.startswith("gpucoord_scrape_duration_seconds ")]
    median, p99 = statistics.median(times), statistics.quantiles(times, n=100)[98]
    print(f"{GPUS} GPUs, {PROCESSES} processes, {JOBS} jobs: {samples} samples, {len(text)} bytes")
    print(f"a scrape: median {median:.1f} ms, p99 {p99:.1f} ms (limit {LIMIT_MS} ms)")
    print(f"of it reading rows: {float(told[0].split()[1]) * 1000:.1f} ms")
    return int(median > LIMIT_MS)


if __name__ == "__main__":
    sys.exit(main())
