"""CPU time of a pass of the planner, with the reasons of all waiting jobs.

python -m tests.bench.bench_plan
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from datetime import timedelta

from msgspec.structs import replace

from scheduler.facts.jobs import QueuedJob, Requirement
from scheduler.facts.people import Budget, Capacity, Quota, UserAccount
from scheduler.facts.plans import Holder, PlanPolicy, RunningJob, Slot, Slots
from scheduler.queue.planner.forecasts import forecast
from scheduler.queue.planner.plan import plan
from tests.builders import GIB, NOW, slot

PEOPLE = 50
TRIES = 5
LENGTHS = (None, 1, 2, 4, 8, 24)


def requirements(chance: random.Random) -> list[Requirement]:
    """Requests of users, a few dozen kinds."""
    kinds = [Requirement(exclusive=True), Requirement(), Requirement(gpus=2, exclusive=True)]
    kinds += [Requirement(memory_bytes=size * GIB) for size in range(4, 72, 4)]
    kinds += [Requirement(gpus=4, memory_bytes=40 * GIB), Requirement(model="H100", exclusive=True)]
    kinds += [Requirement(capability=(8, 0), memory_bytes=30 * GIB), Requirement(gpus=0)]
    chance.shuffle(kinds)
    return kinds


def queue(jobs: int, habits: int | None = 6, seed: int = 1) -> list[QueuedJob]:
    """Of 50 people, each with a few habits (what is asked for, how long, how urgent); None: every
    job is as it likes."""
    chance = random.Random(seed)
    kinds = requirements(chance)

    def habit() -> tuple[Requirement, int, timedelta | None]:
        hours = chance.choice(LENGTHS)
        limit = None if hours is None else timedelta(hours=hours)
        return chance.choice(kinds), chance.choice((1, 2, 3, 3, 3, 3, 4, 5)), limit

    theirs = [[habit() for _ in range(habits or 0)] for _ in range(PEOPLE)]
    found = []
    for id_ in range(1, jobs + 1):
        person = chance.randrange(PEOPLE)
        asked, priority, limit = habit() if habits is None else chance.choice(theirs[person])
        found.append(
            QueuedJob(
                id=id_,
                owner=f"person{person:02}",
                priority=priority,
                submitted_at=NOW - timedelta(seconds=2 * (jobs - id_)),
                requirement=asked,
                time_limit=limit,
            )
        )
    return found


def machine(gpus: int) -> Slots:
    """Half of the GPUs are taken by jobs, a quarter by others; three are free."""
    found: list[Slot] = []
    running: list[RunningJob] = []
    for index in range(gpus):
        gpu = slot(index, model="NVIDIA H100 80GB HBM3", capability=(9, 0), power=2000.0)
        if index % 4 == 1:
            gpu = replace(gpu, free_bytes=30 * GIB, foreign=(Holder(name="eve/python"),))
        elif index % 2 == 0 and index:
            gpu = replace(gpu, jobs=(10**6 + index,), held_bytes=(0,), exclusive=True)
            running.append(
                RunningJob(
                    id=10**6 + index,
                    owner=f"person{index % PEOPLE:02}",
                    priority=3,
                    requirement=Requirement(exclusive=True),
                    gpu_uuids=(gpu.gpu_uuid,),
                    started_at=NOW - timedelta(hours=1),
                    lasts=timedelta(hours=2 + index % 7),
                )
            )
        found.append(gpu)
    shared = Capacity(gpu_uuids=tuple(g.gpu_uuid for g in found), gpu_bytes=80 * GIB)
    return Slots(
        host="gpubox",
        gpus=tuple(found),
        running=tuple(running),
        people={f"person{at:02}": account(at, shared) for at in range(PEOPLE)},
    )


def account(at: int, shared: Capacity) -> UserAccount:
    """Every fifth person has a budget, every third a limit."""
    budget = Budget(
        limit=600, spent=500.0 + at, committed=60, resets_at=NOW + timedelta(hours=9), zone="UTC"
    )
    return UserAccount(
        owner=f"person{at:02}",
        quota=Quota(share_pct=10, gpus=2 if at % 3 == 0 else None),
        target=1 / PEOPLE,
        charge=(at % 7) / 4,
        capacity=shared,
        budget=budget if at % 5 == 0 else None,
    )


def best_ms(run: Callable[[], object]) -> float:
    """The quickest of a few tries."""
    took = []
    for _ in range(TRIES):
        began = time.process_time()
        run()
        took.append((time.process_time() - began) * 1000)
    return min(took)


def main() -> None:
    policy = PlanPolicy()
    print("  jobs  GPUs  habits  placed  reasons       pass    per job")
    for gpus, habits in ((8, 6), (64, 6), (8, None)):
        slots = machine(gpus)
        for jobs in (100, 1_000, 10_000, 100_000):
            waiting = queue(jobs, habits)
            made = plan(waiting, slots, policy, NOW)
            took = best_ms(lambda: plan(waiting, slots, policy, NOW))  # noqa: B023
            kinds = len({id(found) for found in made.blockers.values()})
            print(
                f"{jobs:>6} {gpus:>5} {habits or 'none':>7} {len(made.placements):>7} {kinds:>8}"
                f" {took:>7.1f} ms {took / jobs * 1000:>7.2f} µs"
            )
    for jobs in (100, 1_000, 10_000):
        waiting = queue(jobs)
        took = best_ms(lambda: forecast(waiting, machine(8), policy, NOW))  # noqa: B023
        print(f"{jobs:>6}     8  when each starts: {took:.1f} ms")


if __name__ == "__main__":
    main()
