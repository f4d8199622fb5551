"""Cost of usage reports beside the same sums in plain SQL: python -m tests.bench.bench_report."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

GPUS, USERS, PROCESSES_A_DAY = 8, 20, 200
DAY_S, HOUR_S, GIB = 86_400, 3_600, 1024**3
NOW = datetime(2026, 11, 1, tzinfo=UTC)
SQL = """
    SELECT u.user, SUM(h.sm_s), SUM(h.held_s), SUM(h.known_s), SUM(h.memory_byte_s), SUM(h.joules)
    FROM monitor_processhour h JOIN monitor_processuse u ON u.id = h.use_id
    WHERE h.t >= %s AND h.t < %s GROUP BY u.user
"""


def main() -> None:
    """Fills a database in a process of its own, so that the peak memory is that of reports."""
    days = int(sys.argv[1]) if len(sys.argv) > 1 else 365
    filling = "fill" in sys.argv
    if not filling:
        os.environ["GPUCOORD_DATA"] = tempfile.mkdtemp(prefix="gpucoord-bench-")
        subprocess.run([sys.executable, "-m", __spec__.name, str(days), "fill"], check=True)
    os.environ["DJANGO_SETTINGS_MODULE"] = "tests.settings"
    import django

    django.setup()
    if filling:
        print(f"{days} days, {GPUS} GPUs, {USERS} users, {PROCESSES_A_DAY} processes a day")
        print(f"{fill(NOW, days)} hours of processes")
    else:
        measure(NOW, [30, days] if days > 30 else [days])


def measure(now: datetime, lengths: list[int]) -> None:
    """Each in this process: the first report also loads the code."""
    from django.db import connection

    from monitor.owners.policy import Viewer
    from reports.figures.actions import build
    from reports.figures.policy import periods
    from reports.render.actions import FORMATS, render

    def report(length: int) -> Any:
        period = periods.parse(f"{length}d", "", "", "UTC", now)
        return build(period, periods.scope("all"), Viewer("root", operator=True), now)

    def floor(length: int) -> Any:
        since = int((now - timedelta(days=length)).timestamp())
        with connection.cursor() as cursor:
            return cursor.execute(SQL, [since, int(now.timestamp())]).fetchall()

    report(1)
    for length in lengths:
        _tell(f"plain SQL, {length} days", lambda length=length: floor(length))
        made = _tell(f"report, {length} days", lambda length=length: report(length))
    for format in FORMATS:
        _tell(f"render {format}", lambda format=format: render(made, format))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{'peak memory of this process':<28} {peak:8.0f} MiB")


def _tell(name: str, action: Callable[[], Any]) -> Any:
    """The best of three: other load only adds to it."""
    times, cpu = [], []
    for _ in range(3):
        wall, used = time.perf_counter(), time.process_time()
        result = action()
        times.append(time.perf_counter() - wall)
        cpu.append(time.process_time() - used)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{name:<28} {min(times):8.3f} s  CPU {min(cpu):8.3f} s  peak so far {peak:5.0f} MiB")
    return result


def fill(now: datetime, days: int) -> int:
    """Processes of three hours on average; returns how many hours of processes there are."""
    from django.core.management import call_command

    from monitor.models import Gpu, GpuHour, ProcessHour, ProcessUse
    from tests.builders import gpu_uuid
    from tests.monitor.past import NOTHING

    call_command("migrate", verbosity=0)
    dice = Random(1)
    end = int(now.timestamp())
    first = end - days * DAY_S
    facts = {"host": "box", "state_since_at": now, "last_seen_at": now}
    began = datetime.fromtimestamp(first, UTC)
    gpus = Gpu.objects.bulk_create(
        Gpu(uuid=gpu_uuid(i), index=i, first_seen_at=began, **facts) for i in range(GPUS)
    )
    seen = {**NOTHING, "seen_s": HOUR_S, "energy_j": 3e5, "power_known_s": HOUR_S}
    GpuHour.objects.bulk_create(
        (GpuHour(gpu=gpu, t=t, **seen) for gpu in gpus for t in range(first, end, HOUR_S)),
        batch_size=2000,
    )
    uses = ProcessUse.objects.bulk_create(
        _uses(dice, [gpu.uuid for gpu in gpus], first, days), batch_size=2000
    )
    ProcessHour.objects.bulk_create(_hours(dice, uses, end), batch_size=2000)
    return ProcessHour.objects.count()


def _uses(dice: Random, gpus: list[str], first: int, days: int) -> Iterator[Any]:
    from monitor.models import ProcessUse

    for number in range(days * PROCESSES_A_DAY):
        begin = first + number * DAY_S / PROCESSES_A_DAY
        lasts = dice.expovariate(1 / (3 * HOUR_S))
        yield ProcessUse(
            host="box", pid=1000 + number, start_ticks=number, gpu_id=dice.choice(gpus),
            user=f"user{dice.randrange(USERS)}", program="python",
            first_seen_at=datetime.fromtimestamp(begin, UTC),
            last_seen_at=datetime.fromtimestamp(begin + lasts, UTC),
        )  # fmt: skip


def _hours(dice: Random, uses: list[Any], end: int) -> Iterator[Any]:
    from monitor.models import ProcessHour

    for use in uses:
        part = dice.random()
        begin, last = use.first_seen_at.timestamp(), min(end, use.last_seen_at.timestamp())
        while begin < last:
            hour = int(begin) // HOUR_S * HOUR_S
            held = min(last, hour + HOUR_S) - begin
            yield ProcessHour(
                use=use, t=hour, sm_s=held * part, held_s=held, known_s=held,
                memory_byte_s=held * 10 * GIB, memory_known_s=held, joules=held * 300 * part,
            )  # fmt: skip
            begin += held


if __name__ == "__main__":
    main()
