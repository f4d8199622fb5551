"""Cost of capacity planning, in CPU time: python -m tests.bench.bench_capacity [JOBS ...].

14 days of jobs of 50 users on 8 GPUs at 85 % load, replayed by the planner; and a year of hours.
"""

from __future__ import annotations

import random
import resource
import sys
import time
from collections.abc import Callable
from datetime import UTC, timedelta
from functools import partial
from typing import Any

from reports.capacity.policy import demand
from reports.capacity.policy.demand import (
    AccountInput,
    CapacityGpu,
    GpuHourFigures,
    RecordedJob,
    forecast,
)
from reports.capacity.policy.replay import Replay, ReplayInput, changes
from scheduler.facts.jobs import Requirement
from scheduler.facts.people import Quota
from tests.builders import GIB, NOW, gpu_uuid

GPUS, USERS, DAYS, LOAD, HOURS_OF_YEAR = 8, 50, 14, 0.85, 8760


def machine() -> list[CapacityGpu]:
    return [
        CapacityGpu(
            uuid=gpu_uuid(index), host="box", index=index, model="NVIDIA H100 80GB HBM3",
            memory_bytes=80 * GIB, capability=(9, 0), power=2000.0,
        )
        for index in range(GPUS)
    ]  # fmt: skip


def queue(count: int) -> tuple[RecordedJob, ...]:
    """Half of the jobs take a whole GPU, half share one; run times are exponential."""
    dice = random.Random(1)
    whole_hours = LOAD * GPUS * DAYS * 24 / (count * 0.65)
    jobs = []
    for number in range(1, count + 1):
        shared = dice.random() < 0.5
        hours = min(72.0, dice.expovariate(1 / whole_hours))
        at = NOW + timedelta(days=DAYS * dice.random())
        jobs.append(
            RecordedJob(
                id=number, owner=f"user{dice.randrange(USERS)}", priority=dice.choice((1, 3, 3, 5)),
                submitted_at=at, started_at=at, run_time=timedelta(hours=hours),
                lasts=timedelta(hours=2 * hours), preemptible=dice.random() < 0.2,
                requirement=Requirement(memory_bytes=24 * GIB) if shared
                else Requirement(exclusive=True),
            )
        )  # fmt: skip
    return tuple(jobs)


def played(given: ReplayInput, gpus: list[CapacityGpu]) -> str:
    replay = Replay(given, gpus)
    while replay.advance():
        pass
    found = replay.figures()
    return f"p50 {(found.p50_s or 0) / 60:.0f} min, p90 {(found.p90_s or 0) / 60:.0f} min"


def main() -> None:
    counts = [int(word) for word in sys.argv[1:]] or [500, 2000]
    print(f"{'what':<46}{'CPU s':>8}  result")
    quotas = {f"user{n}": Quota(gpus=4, gpu_minutes=24 * 60.0) for n in range(USERS)}
    for count in counts:
        jobs = queue(count)
        free = ReplayInput(jobs=jobs)
        _tell(f"replay of {count} jobs", partial(played, free, machine()))
        limited = ReplayInput(jobs=jobs, accounts=AccountInput(quotas=quotas))
        _tell(f"replay of {count} jobs with budgets", partial(played, limited, machine()))
        more = partial(played, free, list(changes(machine())[0].gpus))
        _tell(f"replay of {count} jobs, one GPU more", more)
    _tell("demand of a quarter and forecast", _forecast)
    _tell(f"percentiles of {GPUS} GPUs, one year", _profiles)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{'peak memory of this process':<46}{peak:8.0f}  MiB")


def _forecast() -> str:
    since = NOW - timedelta(days=90)
    hours = demand.demand_hours(queue(20_000), {}, since, NOW + timedelta(days=DAYS), 80 * GIB)
    found = forecast(demand.daily_means(hours), GPUS)
    return f"{found.days} days" if found else "too few days"


def _profiles() -> str:
    first = int(NOW.timestamp()) - HOURS_OF_YEAR * 3600
    for gpu in machine():
        hours = [
            GpuHourFigures(
                gpu_uuid=gpu.uuid, t=first + n * 3600, utilisation_pct=n % 101,
                memory_bytes=1e6 * n, joules=1e5,
            )
            for n in range(HOURS_OF_YEAR)
        ]  # fmt: skip
        demand.gpu_profile(gpu, hours, UTC)
    return f"{GPUS * HOURS_OF_YEAR} hours"


def _tell(name: str, action: Callable[[], Any]) -> None:
    began = time.process_time()
    result = action()
    print(f"{name:<46}{time.process_time() - began:8.2f}  {result}", flush=True)


if __name__ == "__main__":
    main()
