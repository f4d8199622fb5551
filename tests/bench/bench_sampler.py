"""Cost of a tick of the sampler, database included: python -m tests.bench.bench_sampler [ticks].

Simulated servers on a SQLite database with gpucoord's settings; then the host probe alone, and
what it takes to know who a process is, per process of this machine.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

SIZES = ((8, 0), (64, 500))
NOW = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)


def main() -> None:
    ticks = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    with tempfile.TemporaryDirectory(prefix="gpucoord-bench-") as folder:
        os.environ |= {"GPUCOORD_DATA": folder, "GPUCOORD_PROBE": "simulated"}
        os.environ["DJANGO_SETTINGS_MODULE"] = "gpucoord_site.settings"
        import django
        from django.core.management import call_command

        django.setup()
        call_command("migrate", verbosity=0)
        for gpus, processes in SIZES:
            measure_sampler(gpus, processes, ticks)
        measure_host(ticks, Path(folder))


def measure_sampler(gpus: int, processes: int, ticks: int) -> None:
    from django.db import transaction

    from monitor.gpus.sampling.probes.host import HostProbe
    from monitor.gpus.sampling.probes.simulated import SimulatedProbe
    from monitor.gpus.sampling.step import Sampler
    from monitor.models import LatestSnapshot

    name = f"box{gpus}"
    probe = SimulatedProbe(gpus, processes=processes)
    sampler = Sampler(transaction.atomic, probe, HostProbe(name))
    sampler.open()
    seen = sampler.step(NOW)
    report(
        f"{gpus} GPUs, {len(seen.processes)} processes: a tick",
        [lambda i=i: sampler.step(NOW + timedelta(seconds=i)) for i in range(1, ticks + 1)],
    )
    report(
        "  of it the simulation",
        [lambda i=i: probe.read(NOW + timedelta(hours=1, seconds=i), ()) for i in range(ticks)],
    )
    size = len(LatestSnapshot.objects.get(host=name).body)
    print(f"  the snapshot as JSON{'':22}{size / 1000:8.1f} kB")


def measure_host(ticks: int, folder: Path) -> None:
    from monitor.gpus.sampling.probes.host import HostProbe

    host = HostProbe("box", [folder])
    host.open()
    report(
        "the host probe",
        [lambda i=i: host.read(NOW + timedelta(seconds=i)) for i in range(ticks)],
    )
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    first = spent(lambda: host.identities(pids)) / len(pids)
    again = statistics.median(spent(lambda: host.identities(pids)) / len(pids) for _ in range(20))
    print(
        f"who a process is (of {len(pids)}): first {first * 1e6:.0f} µs, then {again * 1e6:.1f} µs"
    )


def report(what: str, runs: list[Callable[[], object]]) -> None:
    costs = sorted(1e3 * spent(run) for run in runs)
    p99 = costs[min(len(costs) - 1, int(0.99 * len(costs)))]
    print(f"{what:44}CPU p50 {statistics.median(costs):6.2f} ms  p99 {p99:6.2f} ms")


def spent(run: Callable[[], object]) -> float:
    before = time.process_time()
    run()
    return time.process_time() - before


if __name__ == "__main__":
    main()
