"""Cost of the incident rules, database included: python -m tests.bench.bench_hogs [minutes].

Simulated servers that are sampled and judged each 5 s, on a SQLite database with gpucoord's
settings; then a new controller that has to build up the last hours.
"""

from __future__ import annotations

import logging
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

SIZES = ((8, 24), (64, 200))
EVERY_S = 5
NOW = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)


def main() -> None:
    minutes = float(sys.argv[1]) if len(sys.argv) > 1 else 15.0
    with tempfile.TemporaryDirectory(prefix="gpucoord-bench-") as folder:
        os.environ |= {"GPUCOORD_DATA": folder, "GPUCOORD_PROBE": "simulated"}
        os.environ["DJANGO_SETTINGS_MODULE"] = "gpucoord_site.settings"
        import django
        from django.core.management import call_command

        django.setup()
        logging.disable(logging.CRITICAL)
        call_command("migrate", verbosity=0)
        for gpus, processes in SIZES:
            measure(gpus, processes, round(minutes * 60 / EVERY_S))


def measure(gpus: int, processes: int, ticks: int) -> None:
    from django.db import transaction

    from monitor.gpus.rows import snapshot as snapshots
    from monitor.gpus.sampling.probes.host import HostProbe
    from monitor.gpus.sampling.probes.simulated import SimulatedProbe
    from monitor.gpus.sampling.step import Sampler
    from monitor.models import Incident
    from scheduler.dispatch.steps.controller import IncidentWatch

    name = f"box{gpus}"
    sampler = Sampler(
        transaction.atomic, SimulatedProbe(gpus, processes=processes), HostProbe(name)
    )
    sampler.open()
    watch = IncidentWatch(name)
    costs: list[float] = []
    for tick in range(ticks):
        now = NOW + timedelta(seconds=tick * EVERY_S)
        sampler.step(now)
        seen = snapshots.newest(name)
        with transaction.atomic():
            costs.append(spent(lambda at=now, shot=seen: watch.judge(shot, at)))
    with transaction.atomic():
        again = spent(lambda: IncidentWatch(name).judge(snapshots.newest(name), now))
    count = len(seen.processes) if seen else 0
    late = sorted(costs[len(costs) // 2 :])
    p99 = late[min(len(late) - 1, int(0.99 * len(late)))]
    opened = Incident.objects.filter(host=name).count()
    print(
        f"{gpus} GPUs, {count} processes: p50 {statistics.median(late):.1f} ms, p99 {p99:.1f} ms;"
        f" after a restart {again:.0f} ms; {opened} incidents"
    )


def spent(run: Callable[[], object]) -> float:
    """Milliseconds of wall time."""
    before = time.perf_counter()
    run()
    return 1e3 * (time.perf_counter() - before)


if __name__ == "__main__":
    main()
