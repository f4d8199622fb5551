"""Live pages of many hosts on PostgreSQL: python -m tests.bench.bench_hosts_live [HOSTS] [VIEWERS].

`gpucoord up` serves one host of 8 GPUs. Another process writes the readings of all other hosts
once a second, as their samplers would, one after the other. Latency is from the reading of the
last host, before its transaction, to the first frame with it at each viewer of the dashboard.
Clients, writer and PostgreSQL share the machine's cores with the service. Writes of one second
are those of all hosts, by PostgreSQL's own counters.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psycopg

from tests.bench.bench_live import Viewer, cpu_seconds, log_in
from tests.processes.service import Service
from tests.service.postgres_cluster import server

SECONDS, WARM_UP_S = 30, 10
# Frames carry the time of the oldest reading, which must be one of the writer's.
BEHIND_S = 1.5
COUNTERS = """
SELECT xact_commit, tup_inserted, tup_updated, pg_current_wal_lsn() - '0/0'::pg_lsn
FROM pg_stat_database WHERE datname = current_database()
"""


class Timed(Viewer):
    """Keeps the time of arrival of each new oldest reading."""

    def __init__(self, address: str, cookie: str) -> None:
        super().__init__(address, cookie)
        self.arrived: dict[str, float] = {}

    def _take(self, frame: bytes, arrived: float) -> None:
        before = self.newest
        super()._take(frame, arrived)
        if self.newest > before:
            self.arrived[f"{self.newest:.3f}"] = arrived


def main() -> None:
    hosts = int(sys.argv[1]) if len(sys.argv) > 1 else 32
    viewers = int(sys.argv[2]) if len(sys.argv) > 2 else 100
    with server() as postgres, tempfile.TemporaryDirectory(prefix="gpucoord-bench-") as folder:
        log = Path(folder) / "written"
        env = {"DATABASE_URL": postgres.url, "GPUCOORD_SIMULATED_GPUS": "8"}
        with Service(Path(folder) / "data", **env, GPUCOORD_NODE="node00") as service:
            other = {"GPUCOORD_NODE": "node01", "GPUCOORD_DATA": f"{folder}/other"}
            writer = subprocess.Popen(
                [sys.executable, "-m", "tests.bench.bench_hosts_live", "--write", str(hosts), log],
                env={**service._env, **other},
            )
            try:
                time.sleep(WARM_UP_S)
                measure(service, viewers, log, postgres.url, hosts)
            finally:
                writer.terminate()
                writer.wait()


def measure(service: Service, viewers: int, log: Path, url: str, hosts: int) -> None:
    with psycopg.connect(url, autocommit=True) as database:
        before, began = database.execute(COUNTERS).fetchone(), time.monotonic()
        timed, used = asyncio.run(watch(service, viewers))
        after, passed = database.execute(COUNTERS).fetchone(), time.monotonic() - began
    written = dict(line.split() for line in log.read_text().splitlines())
    delays = [
        arrived - float(written[at])
        for viewer in timed
        for at, arrived in viewer.arrived.items()
        if at in written
    ]
    cuts = statistics.quantiles(delays, n=100, method="inclusive")
    figures = ", ".join(f"{name} {1000 * cuts[n]:.0f} ms" for name, n in (("p50", 49), ("p99", 98)))
    print(f"{hosts} hosts, {viewers} viewers, {len(delays)} frames: sample -> viewer {figures}")
    print(f"web process: {used:.0f} % of a core; the writer wrote all hosts {len(written)} times")
    assert before is not None
    assert after is not None
    names = ("transactions", "rows inserted", "rows updated", "bytes of WAL")
    rates = [float(b - a) / passed for a, b in zip(before, after, strict=True)]
    rated = ", ".join(f"{rate:.0f} {name}" for name, rate in zip(names, rates, strict=True))
    print(f"PostgreSQL, each second: {rated}")


async def watch(service: Service, viewers: int) -> tuple[list[Timed], float]:
    loop = asyncio.get_running_loop()
    host, port = service.address.split("//")[1].strip("/").split(":")
    timed = [Timed(service.address, cookie) for cookie in log_in(service, viewers)]
    for viewer in timed:
        await loop.create_connection(lambda v=viewer: v, host, int(port))  # type: ignore[misc]
    await asyncio.sleep(5)
    for viewer in timed:
        viewer.arrived.clear()
    cpu = cpu_seconds(service.child("web"))
    await asyncio.sleep(SECONDS)
    used = 100 * (cpu_seconds(service.child("web")) - cpu) / SECONDS
    for viewer in timed:
        viewer.transport.close()
    return timed, used


def write(number: int, log: Path) -> None:
    """Readings of all hosts but the first, until it is ended."""
    from datetime import timedelta

    import django

    os.environ["GPUCOORD_PROBE"] = "simulated"
    django.setup()
    from django.utils import timezone

    from monitor.journal.rows import events
    from tests.bench.bench_hosts import simulated_samplers

    with events.unlogged(), log.open("w") as written:
        samplers = simulated_samplers(number)[1:]
        while True:
            at = timezone.now() - timedelta(seconds=BEHIND_S)
            for sampler in samplers[:-1]:
                sampler.step(at)
            began = time.time()
            samplers[-1].step(at)
            written.write(f"{at.timestamp():.3f} {began:.3f}\n")
            written.flush()
            time.sleep(max(0.0, at.timestamp() + BEHIND_S + 1 - time.time()))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--write"]:
        write(int(sys.argv[2]), Path(sys.argv[3]))
    else:
        main()
