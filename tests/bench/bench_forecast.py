"""How long it takes to estimate when each of many waiting jobs starts.

Run: python -m tests.bench.bench_forecast
"""

from __future__ import annotations

import time
from datetime import timedelta

from scheduler.facts.jobs import QueuedJob, Requirement
from scheduler.facts.plans import PlanPolicy, RunningJob, Slots
from scheduler.queue.planner.forecast.forecast import forecast, what_if
from tests.builders import GIB, NOW, gpu_uuid, queued_job, slot

HOUR = timedelta(hours=1)


def queue(jobs: int) -> list[QueuedJob]:
    return [
        queued_job(
            n,
            owner=f"user{n % 50}",
            priority=1 + n % 5,
            submitted_at=NOW + timedelta(seconds=n),
            memory_bytes=(8 + n % 7 * 8) * GIB,
            gpus=1 + (n % 11 == 0),
            time_limit=HOUR * (1 + n % 5),
        )
        for n in range(jobs)
    ]


def full(gpus: int) -> Slots:
    running = tuple(
        RunningJob(
            id=10**6 + n,
            owner="someone",
            priority=3,
            requirement=Requirement(exclusive=True),
            gpu_uuids=(gpu_uuid(n),),
            started_at=NOW,
            lasts=HOUR * (1 + n),
        )
        for n in range(gpus)
    )
    taken = tuple(slot(n, jobs=(10**6 + n,), exclusive=True) for n in range(gpus))
    return Slots(host="gpubox", gpus=taken, running=running)


def best(runs: int, jobs: int, gpus: int) -> tuple[float, float]:
    """Milliseconds of CPU for all estimates, and for one question more."""
    waiting, slots, policy = queue(jobs), full(gpus), PlanPolicy()
    new = queued_job(10**7, time_limit=HOUR, memory_bytes=GIB)
    found: tuple[list[float], list[float]] = ([], [])
    for _ in range(runs):
        start = time.process_time()
        forecast(waiting, slots, policy, NOW)
        found[0].append(time.process_time() - start)
        start = time.process_time()
        what_if(new, waiting, slots, policy, NOW)
        found[1].append(time.process_time() - start)
    return 1000 * min(found[0]), 1000 * min(found[1])


def main() -> None:
    print("waiting  GPUs  all estimates  what if")
    for jobs, gpus in ((100, 8), (1000, 8), (1000, 64), (10_000, 8)):
        forecasts, question = best(3, jobs, gpus)
        print(f"{jobs:7}  {gpus:4}  {forecasts:10.1f} ms  {question:6.1f} ms")


if __name__ == "__main__":
    main()
