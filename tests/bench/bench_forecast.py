"""How long it takes to estimate when each of many waiting jobs starts, and what would help one.

Run: python -m tests.bench.bench_forecast
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta

from scheduler.facts.jobs import QueuedJob, Requirement
from scheduler.facts.plans import PlanPolicy, RunningJob, Slots
from scheduler.queue.planner.forecasts import AdviceFacts, World, advise, forecast, what_if
from scheduler.queue.planner.gates import PlannerThresholds
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


def best(runs: int, jobs: int, gpus: int) -> list[float]:
    """Milliseconds of CPU for all estimates, for one question more, and for advice to a job."""
    waiting, slots, policy, rules = queue(jobs), full(gpus), PlanPolicy(), PlannerThresholds()
    new = queued_job(10**7, time_limit=HOUR, memory_bytes=GIB)
    # It may be changed in all respects.
    asks = Requirement(
        gpus=2, memory_bytes=60 * GIB, exclusive=True, model="H100", capability=(8, 0)
    )
    last = queued_job(
        10**7 + 1, priority=1, time_limit=8 * HOUR, submitted_at=NOW, requirement=asks
    )
    worlds = {"gpubox": World(queue=waiting, slots=slots, policy=policy, rules=rules)}
    facts = AdviceFacts(most_priority=4, needed_bytes=8 * GIB)
    asked: tuple[Callable[[], object], ...] = (
        lambda: forecast(waiting, slots, policy, NOW),
        lambda: what_if(new, waiting, slots, policy, NOW),
        lambda: advise(last, worlds, facts, NOW),
    )
    return [min(_cpu_ms(ask) for _ in range(runs)) for ask in asked]


def _cpu_ms(ask: Callable[[], object]) -> float:
    start = time.process_time()
    ask()
    return 1000 * (time.process_time() - start)


def main() -> None:
    print("waiting  GPUs  all estimates    what if     advice")
    for jobs, gpus in ((100, 8), (1000, 8), (1000, 64), (10_000, 8)):
        forecasts, question, advice = best(3, jobs, gpus)
        print(f"{jobs:7}  {gpus:4}  {forecasts:10.1f} ms  {question:6.1f} ms  {advice:6.1f} ms")


if __name__ == "__main__":
    main()
