"""Cost of history: python -m tests.bench.bench_history [days].

90 days of rollups of 8 GPUs with 24 processes on SQLite with gpucoord's settings: how large they
are, and how long the server takes for the pages of history, whatever the range.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from datetime import UTC, datetime, timedelta
from typing import Any

GPUS, PROCESSES, LIFE_S = 8, 24, 6 * 3600
DAY_S, HOUR_S = 86_400, 3_600
RUNS = 7
LIMIT_MS = 100

_GPU_SUMS = (
    "seen_s, utilization_pct_s, utilization_known_s, utilization_max_pct, memory_byte_s,"
    " memory_known_s, memory_max_bytes, energy_j, power_known_s, power_max_w, temperature_max_c"
)
_GPU_FOLD = (
    "sum(seen_s), sum(utilization_pct_s), sum(utilization_known_s), max(utilization_max_pct),"
    " sum(memory_byte_s), sum(memory_known_s), max(memory_max_bytes), sum(energy_j),"
    " sum(power_known_s), max(power_max_w), max(temperature_max_c)"
)
_HOST_SUMS = (
    "seen_s, cpu_pct_s, cpu_known_s, load_s, load_known_s, memory_byte_s, memory_known_s,"
    " disk_read_bytes, disk_written_bytes, disk_known_s, cpu_pressure_pct_s,"
    " memory_pressure_pct_s, io_pressure_pct_s, pressure_known_s"
)
_SUMS = "sm_s, held_s, known_s, memory_byte_s, peak_memory_bytes, joules"
_FOLD = (
    "sum(sm_s), sum(held_s), sum(known_s), sum(memory_byte_s), max(peak_memory_bytes), sum(joules)"
)
_SERIES = "WITH RECURSIVE m(t) AS (VALUES({a}) UNION ALL SELECT t + {step} FROM m WHERE t < {z})"
# Any number that differs from row to row: what is stored would else be smaller than it is.
_ANY = "abs(random() % 100000) / 1000.0"


def main() -> None:
    days = int(sys.argv[1]) if len(sys.argv) > 1 else 90
    with tempfile.TemporaryDirectory(prefix="gpucoord-bench-") as folder:
        os.environ |= {"GPUCOORD_DATA": folder, "GPUCOORD_PROBE": "none", "GPUCOORD_NODE": "box"}
        os.environ["DJANGO_SETTINGS_MODULE"] = "gpucoord_site.settings"
        import django
        from django.core.management import call_command

        django.setup()
        call_command("migrate", verbosity=0)
        now = datetime.now(UTC).replace(microsecond=0)
        began = time.perf_counter()
        seed(now, days)
        print(f"seeded {days} days in {time.perf_counter() - began:.0f} s")
        sizes(days)
        slow = pages(now, days)
        rolling(now)
    sys.exit(f"slower than {LIMIT_MS} ms: {slow}" if slow else 0)


def seed(now: datetime, days: int) -> None:
    from django.db import connection, transaction

    z = int(now.timestamp()) // 60 * 60
    a = z - days * DAY_S
    _seed_things(now, a, z)
    minutes = _SERIES.format(a=a, z=z - 60, step=60)
    hourly = "t - t % 3600"
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(
            f"{minutes} INSERT INTO monitor_gpuminute(gpu_id, t, {_GPU_SUMS})"
            f" SELECT uuid, t, 60, 60 * {_ANY}, 60, {_ANY},"
            f" 4000000000 * (1 + abs(random() % 1000)), 60, 80000000000,"
            f" 60 * {_ANY}, 60, {_ANY}, 61 FROM m, monitor_gpu"
        )
        cursor.execute(
            f"{minutes} INSERT INTO monitor_hostminute(host, t, {_HOST_SUMS}) SELECT 'box', t, 60,"
            f" {_ANY}, 60, {_ANY}, 60, 9000000000000, 60, {_ANY}, {_ANY}, 60, {_ANY}, {_ANY},"
            f" {_ANY}, 60 FROM m"
        )
        cursor.execute(
            f"{minutes} INSERT INTO monitor_processminute(use_id, t, {_SUMS})"
            f" SELECT u.id, m.t, {_ANY}, 60, 60, 1000000000 * {_ANY}, 40000000000, 60 * {_ANY}"
            f" FROM m JOIN monitor_processuse u"
            f" ON u.uid = (m.t - {a}) / {LIFE_S}"
        )
        for kind, key, sums, fold in (
            ("gpu", "gpu_id", _GPU_SUMS, _GPU_FOLD),
            ("process", "use_id", _SUMS, _FOLD),
        ):
            cursor.execute(
                f"INSERT INTO monitor_{kind}hour({key}, t, {sums}) SELECT {key}, {hourly} AS h,"
                f" {fold} FROM monitor_{kind}minute GROUP BY {key}, h"
            )
        cursor.execute(
            f"INSERT INTO monitor_hosthour(host, t, {_HOST_SUMS}) SELECT host, {hourly} AS h,"
            f" {', '.join(f'sum({name})' for name in _HOST_SUMS.split(', '))}"
            f" FROM monitor_hostminute GROUP BY host, h"
        )
        seconds = _SERIES.format(a=z - 2 * HOUR_S, z=int(now.timestamp()) - 1, step=1)
        cursor.execute(
            f"{seconds} INSERT INTO monitor_sample(gpu_id, t, utilization_pct, memory_used_bytes,"
            f" power_w, temperature_c, sm_clock_mhz) SELECT uuid, t, {_ANY}, 40000000000, {_ANY},"
            f" 61, 1980 FROM m, monitor_gpu"
        )


def _seed_things(now: datetime, a: int, z: int) -> None:
    """GPUs and processes; `uid` says in which stretch of LIFE_S a process lived."""
    from django.contrib.auth.models import User

    from monitor.gpus.rows import snapshot as snapshots
    from monitor.gpus.sampling.probes.simulated import Scenario
    from monitor.models import ProcessUse

    User.objects.create_superuser("root", "", "password of the bench")
    scenario = Scenario(GPUS)
    snapshots.record(scenario.snapshot(now, "box"))
    people = ("alice", "bob", "charlie", "dana", "erin", "frank", "grace")
    ProcessUse.objects.bulk_create(
        ProcessUse(
            host="box",
            pid=10_000 + slot,
            start_ticks=begin,
            gpu_id=scenario.uuids[slot % GPUS],
            user=people[(slot + number) % len(people)],
            uid=number,
            program="python",
            first_seen_at=datetime.fromtimestamp(begin, UTC),
            last_seen_at=datetime.fromtimestamp(min(begin + LIFE_S, z), UTC),
            ended_at=datetime.fromtimestamp(begin + LIFE_S, UTC) if begin + LIFE_S < z else None,
            sm_s=1000.0,
            held_s=LIFE_S,
            known_s=LIFE_S,
            source="processes_info",
        )
        for number, begin in enumerate(range(a, z, LIFE_S))
        for slot in range(PROCESSES)
    )


def sizes(days: int) -> None:
    """Bytes of the tables with their indexes."""
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT m.tbl_name, sum(d.pgsize) FROM dbstat('main', 1) d"
            " JOIN sqlite_schema m ON m.name = d.name GROUP BY m.tbl_name"
        )
        own = [row for row in cursor.fetchall() if row[0].startswith("monitor_")]
        of = {name.removeprefix("monitor_"): size for name, size in own}
        counts = {}
        for name in of:
            if name.startswith(("gpu", "process", "host", "sample")):
                cursor.execute(f"SELECT count(*) FROM monitor_{name}")
                counts[name] = cursor.fetchone()[0]
    gpu_days = GPUS * days
    print(f"{'table':16}{'rows':>10}{'B/row':>8}{'kB/GPU-day':>12}{'MB':>9}")
    for name in ("gpuminute", "gpuhour", "processuse", "processminute", "processhour"):
        size, rows = of[name], counts[name]
        each = size / rows
        print(f"{name:16}{rows:>10}{each:>8.0f}{size / gpu_days / 1e3:>12.1f}{size / 1e6:>9.1f}")
    raw = of["sample"] / counts["sample"]
    print(f"{'sample (2 h)':16}{counts['sample']:>10}{raw:>8.0f}{'':12}{of['sample'] / 1e6:>9.1f}")
    kept = sum(of[n] for n in of if n.startswith(("gpu", "process", "host")))
    print(f"in all {kept / 1e6:.0f} MB: {kept / gpu_days / 1e3:.0f} kB per GPU-day")


def pages(now: datetime, days: int) -> list[str]:
    from django.contrib.auth.models import User
    from django.test import Client

    from monitor.models import Gpu, ProcessUse

    client = Client(SERVER_NAME="localhost")
    client.force_login(
        User.objects.get(username="root"), "django.contrib.auth.backends.ModelBackend"
    )
    gpu = Gpu.objects.get(index=0).uuid
    use = ProcessUse.objects.filter(ended_at=None).latest("pk").pk

    def since(**ago: float) -> str:
        begin, until = now - timedelta(**ago), now - timedelta(**ago) + timedelta(days=2.9)
        return f"since={begin:%Y-%m-%dT%H:%MZ}&until={min(until, now):%Y-%m-%dT%H:%MZ}"

    whole = f"since={now - timedelta(days=days):%Y-%m-%dT%H:%MZ}"
    old = since(days=days - 1)
    ranges = ["range=10min", "range=1h", "range=24h", "range=7d", "range=30d", old, whole]
    slow = []
    print(f"{'':34}" + "".join(f"{name:>12}" for name in ("CPU p50 ms", "p50 ms", "max ms")))
    for path in (f"/gpus/{gpu}/", "/users/alice/", "/hosts/box/", f"/processes/{use}/"):
        for query in ranges:
            cpu, costs = _measure(client, f"{path}?{query}")
            words = {old: "2.9 days by the minute", whole: f"{days} days"}.get(query, query[6:])
            name = f"{path.split('/')[1]}, {words}"
            print(f"{name:34}{cpu:>12.1f}{statistics.median(costs):>12.1f}{max(costs):>12.1f}")
            if path.startswith("/gpus") and cpu > LIMIT_MS:
                slow.append(name)
    return slow


def _measure(client: Any, path: str) -> tuple[float, list[float]]:
    """The median of CPU time, which other work on the machine does not lengthen; wall times."""
    assert client.get(path).status_code == 200, path
    cpu, wall = [], []
    for _ in range(RUNS):
        before, cpu_before = time.perf_counter(), time.process_time()
        client.get(path)
        wall.append(1e3 * (time.perf_counter() - before))
        cpu.append(1e3 * (time.process_time() - cpu_before))
    return statistics.median(cpu), wall


def rolling(now: datetime) -> None:
    """Cost of the tasks of each minute: nothing new first, then a minute of samples."""
    from monitor.usage.rows import rollups

    for what, run in (
        ("roll up", lambda: rollups.roll_up(now)),
        ("again", lambda: rollups.roll_up(now)),
        ("hours of processes", lambda: rollups.roll_up_processes(now)),
        ("prune", lambda: rollups.prune(rollups.RetentionPeriods(raw=timedelta(hours=2)), now)),
        (
            "prune again",
            lambda: rollups.prune(rollups.RetentionPeriods(raw=timedelta(hours=2)), now),
        ),
    ):
        before = time.perf_counter()
        done = run()
        print(f"{what:34}{1e3 * (time.perf_counter() - before):>12.1f}  {done}"[:140])


if __name__ == "__main__":
    main()
