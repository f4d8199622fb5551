"""Pages and writes for many hosts: python -m tests.bench.bench_hosts [HOSTS].

HOSTS simulated hosts of 8 GPUs with their processes, in one database: SQLite, or PostgreSQL with
DATABASE_URL of an empty database. Each page is asked for as a logged-in user, through all of
Django (CPU time of this process, as other work may share the machine). Exits with 1 if the overview
takes longer than LIMIT_MS. Then the writes of one second of all hosts are timed.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

GPUS, PROCESSES, REQUESTS, SECONDS = 8, 24, 20, 5
LIMIT_MS = 200
PAGES = ("/", "/hosts/", "/jobs/", "/status/", "/api/hosts/", "/api/gpus/")


def main() -> int:
    number = int(sys.argv[1]) if len(sys.argv) > 1 else 32
    with tempfile.TemporaryDirectory(prefix="gpucoord-bench-") as folder:
        os.environ |= {"GPUCOORD_DATA": folder, "GPUCOORD_PROBE": "simulated"}
        os.environ["DJANGO_SETTINGS_MODULE"] = "gpucoord_site.settings"
        import django
        from django.core.management import call_command

        django.setup()
        call_command("migrate", verbosity=0)
        from monitor.journal.rows import events

        with events.unlogged():
            samplers = simulated_samplers(number)
            _writes(samplers)
            return _pages(number)


def simulated_samplers(number: int) -> list[Any]:
    from django.db import transaction
    from django.utils import timezone
    from msgspec.structs import replace

    from monitor.facts.readings import GpuSweep, JoiningHost
    from monitor.gpus.rows import hosts as rows
    from monitor.gpus.sampling.probes.host import HostProbe
    from monitor.gpus.sampling.probes.simulated import SimulatedProbe
    from monitor.gpus.sampling.step import Sampler

    class Own(SimulatedProbe):
        """GPUs with UUIDs of this host's own."""

        prefix = ""

        def read(self, *args: Any, **kwargs: Any) -> GpuSweep:
            seen = super().read(*args, **kwargs)
            processes = [replace(p, gpu_uuid=f"{self.prefix}{p.gpu_uuid}") for p in seen.processes]
            gpus = [replace(g, uuid=f"{self.prefix}{g.uuid}") for g in seen.gpus]
            return replace(seen, gpus=tuple(gpus), processes=tuple(processes))

    samplers = []
    for index in range(number):
        name = f"node{index:02}"
        probe = Own(GPUS, processes=PROCESSES)
        probe.prefix = f"{name}-"
        sampler = Sampler(transaction.atomic, probe, HostProbe(name))
        sampler.open()
        samplers.append(sampler)
        host = JoiningHost(
            name=name, instance=name, boot_id="b", version="1", address="", profile="server"
        )
        rows.register(host, timezone.now())
    return samplers


def _writes(samplers: list[Any]) -> None:
    """One second of all hosts, one after the other, as one process."""
    from django.db import connection
    from django.utils import timezone

    begun, walls, cpus = timezone.now() - timedelta(seconds=SECONDS), [], []
    for second in range(SECONDS):
        at = begun + timedelta(seconds=second + 1)
        for sampler in samplers:
            _timed(lambda s=sampler, t=at: s.step(t), walls, cpus)
    steady = len(samplers)
    wall, cpu = sum(walls[steady:]) / (SECONDS - 1), sum(cpus[steady:]) / (SECONDS - 1)
    print(
        f"{connection.vendor}: one second of {len(samplers) * GPUS} GPUs is written in"
        f" {wall:.0f} ms ({cpu:.0f} ms CPU, {len(samplers)} transactions)"
    )


def _timed(action: Callable[[], object], walls: list[float], cpus: list[float]) -> None:
    wall, cpu = time.perf_counter(), time.process_time()
    action()
    walls.append((time.perf_counter() - wall) * 1000)
    cpus.append((time.process_time() - cpu) * 1000)


def _pages(number: int) -> int:
    from django.contrib.auth.models import User
    from django.test import Client

    user = User.objects.create_superuser("olga")
    client = Client(SERVER_NAME="localhost")
    client.force_login(user, "django.contrib.auth.backends.ModelBackend")
    overview = 0.0
    for page in PAGES:
        walls: list[float] = []
        cpus: list[float] = []
        for turn in range(REQUESTS + 1):
            if turn == 1:
                # The first one loads templates.
                walls, cpus = [], []
            _timed(lambda p=page: _get(client, p), walls, cpus)
        p50, most = statistics.median(cpus), max(walls)
        overview = p50 if page == "/" else overview
        print(f"{page:<14} CPU p50 {p50:6.1f} ms, wall p50 {statistics.median(walls):6.1f} ms,"
              f" at most {most:6.1f} ms")  # fmt: skip
    print(f"overview of {number} hosts x {GPUS} GPUs: {overview:.0f} ms (limit {LIMIT_MS} ms)")
    return int(overview > LIMIT_MS)


def _get(client: Any, page: str) -> None:
    answer = client.get(page)
    assert answer.status_code == 200, (page, answer.status_code)


if __name__ == "__main__":
    sys.exit(main())
