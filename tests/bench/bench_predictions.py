"""How far predicted starts are from real ones, when recorded queues are played again.

python -m tests.bench.bench_predictions [sampled]

Each recording is a queue of three users on 9 GPUs: about 100 s (or 100 min) of work, submitted in
the first fifth of it, with the jobs that these users ran before. What users say about run times
differs: nothing, an estimate, a time limit. A prediction is made when a job is submitted, and for
each job that still waits then again every tenth of the work. It uses only what is known at that
moment. sampled: from 20 runs of the planner with drawn run times, in place of one with typical and
one with late run times.
"""

from __future__ import annotations

import dataclasses
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import exp, log
from statistics import median

from msgspec.structs import replace

from scheduler.execution.policy import Progress, run_time
from scheduler.facts.jobs import Ends, QueuedJob, Requirement, RunTime
from scheduler.facts.plans import PlanPolicy, RunningJob, Slots
from scheduler.queue.planner.forecast_classes import (
    Z90,
    EndedJob,
    History,
    Queue,
    expected,
    expected_end,
    history,
)
from scheduler.queue.planner.forecasts import QUEUE_PARTS, Estimate, forecast
from scheduler.queue.planner.gates import PlannerThresholds
from scheduler.queue.planner.plan import place, plan
from scheduler.queue.planner.preemption import KEEP_FREED
from scheduler.queue.planner.simulation import LEAVES_AFTER, Simulation
from tests.builders import NOW, gpu_uuid, slot

GPUS = 9
# The number of the first job of idle work.
IDLE = 10**6
POLICY = PlanPolicy(cpu_jobs=0)
USERS = ("alice", "bob", "carol")
ALONE = Requirement(exclusive=True)
# A user's figures for a job: (time limit, estimate), from its real run time in seconds.
Says = Callable[[float, random.Random], tuple[float | None, float | None]]


def nothing(took: float, chance: random.Random) -> tuple[float | None, float | None]:
    return None, None


def exact_estimate(took: float, chance: random.Random) -> tuple[float | None, float | None]:
    return None, took


def rough_estimate(took: float, chance: random.Random) -> tuple[float | None, float | None]:
    return None, took * chance.lognormvariate(0, 0.3)


def double_limit(took: float, chance: random.Random) -> tuple[float | None, float | None]:
    return 2 * took, None


def loose_limit(took: float, chance: random.Random) -> tuple[float | None, float | None]:
    return took * chance.uniform(1.2, 8), None


@dataclass(frozen=True, slots=True)
class Recorded:
    """A job as it was recorded, in seconds. `at`: its submission after the first one's."""

    id: int
    owner: str
    name: str
    at: float
    took: float
    limit: float | None
    estimate: float | None
    priority: int = 3
    preemptible: bool = False
    # It reports its progress.
    reports: bool = False


@dataclass(frozen=True, slots=True)
class Recording:
    """A queue, and the jobs that ended before it. idle_work: it runs on all GPUs at first."""

    label: str
    jobs: tuple[Recorded, ...]
    before: tuple[EndedJob, ...]
    work_s: float
    idle_work: bool = False


@dataclass(frozen=True, slots=True)
class Checked:
    """A prediction and what came of it: seconds; negative = it started earlier than predicted."""

    p50: float
    p90: float
    start: float

    @property
    def error_s(self) -> float:
        return self.start - self.p50

    @property
    def is_before_p90(self) -> bool:
        return self.start <= self.p90


def recording(
    label: str, says: Says, *, seed: int, scale: float = 1, named: bool, mixed: bool = False
) -> Recording:
    """Jobs of 6 to 30 s times `scale`. named: users run the same few programs again and again.

    mixed: with urgent and preemptible jobs, progress reports, and idle work in the beginning.
    """
    chance = random.Random(seed)
    programs = [(user, f"train{n}", chance.uniform(8, 26)) for user in USERS for n in range(4)]

    def drawn(id_: int) -> Recorded:
        owner, name, typical = chance.choice(programs)
        took = min(30.0, max(6.0, chance.lognormvariate(0, 0.2) * typical)) * scale
        limit, estimate = says(took, chance)
        name = name if named else f"job{id_}"
        made = Recorded(id_, owner, name, chance.uniform(0, 20) * scale, took, limit, estimate)
        if not mixed:
            return made
        priority = chance.choice((1, 3, 3, 3, 5))
        return dataclasses.replace(
            made, priority=priority, preemptible=priority == 1, reports=chance.random() < 0.5
        )

    before = tuple(_ended(drawn(id_)) for id_ in range(1000, 1060))
    jobs = tuple(sorted((drawn(id_) for id_ in range(1, 49)), key=lambda job: job.at))
    return Recording(label, jobs, before, 100 * scale, idle_work=mixed)


def _ended(job: Recorded) -> EndedJob:
    return EndedJob(
        owner=job.owner,
        name=job.name,
        took=timedelta(seconds=job.took),
        limit=_seconds(job.limit),
        estimate=_seconds(job.estimate),
    )


def _seconds(value: float | None) -> timedelta | None:
    return None if value is None else timedelta(seconds=value)


# Estimates of all waiting jobs, as by `forecast`.
Predict = Callable[[Sequence[QueuedJob], Slots, PlanPolicy, datetime], Mapping[int, Estimate]]


class Replay:
    """Plays a recording again with the planner, which plans 100 to 1200 times."""

    def __init__(self, recorded: Recording, predict: Predict = forecast) -> None:
        self._recorded, self._forecast = recorded, predict
        self._step = timedelta(seconds=max(1, recorded.work_s / 1200))
        # Steps between two predictions for all that waits.
        self._pause = round(recorded.work_s / 10 / self._step.total_seconds())
        self._coming = list(recorded.jobs)
        self._queue: dict[int, Recorded] = {}
        self._running: dict[int, tuple[Recorded, datetime, tuple[str, ...]]] = {}
        self._ended: list[EndedJob] = list(recorded.before)
        self._history: History = history(self._ended)
        self._made: list[tuple[int, datetime, datetime]] = []
        self._started: dict[int, datetime] = {}
        self._now = NOW
        # Jobs that were asked to yield, and when they leave.
        self._leaving: dict[int, datetime] = {}
        # GPUs that are kept: for which job, and until when.
        self._kept: dict[str, tuple[int, datetime]] = {}
        for index in range(GPUS) if recorded.idle_work else ():
            idle = Recorded(IDLE + index, "idle", "idle", 0, 10**6, None, None, 1, True)
            self._running[idle.id] = (idle, NOW, (gpu_uuid(index),))

    def run(self) -> Iterator[Checked]:
        number = 0
        while self._coming or self._queue or any(id_ < IDLE for id_ in self._running):
            self._end_jobs()
            self._yield_gpus()
            new = self._submit()
            self._predict(set(self._queue) if number % self._pause == 0 else new)
            self._plan()
            self._now += self._step
            number += 1
        for job, p50, p90 in self._made:
            at = self._started[job]
            yield Checked(*((each - NOW).total_seconds() for each in (p50, p90, at)))

    def _end_jobs(self) -> None:
        over = [
            job
            for job, started, _ in self._running.values()
            if self._now - started >= timedelta(seconds=job.took)
        ]
        for job in over:
            del self._running[job.id]
            self._ended.append(_ended(job))
        if over:
            self._history = history(self._ended)

    def _yield_gpus(self) -> None:
        """Preempted jobs leave, and wait again unless they are idle work."""
        for id_ in [id_ for id_, at in self._leaving.items() if at <= self._now]:
            del self._leaving[id_]
            if id_ in self._running:
                job, _, _ = self._running.pop(id_)
                if id_ < IDLE:
                    self._queue[id_] = job
        self._kept = {
            uuid: (id_, until)
            for uuid, (id_, until) in self._kept.items()
            if id_ in self._queue and self._now < until
        }

    def _submit(self) -> set[int]:
        new: set[int] = set()
        while self._coming and NOW + timedelta(seconds=self._coming[0].at) <= self._now:
            job = self._coming.pop(0)
            self._queue[job.id] = job
            new.add(job.id)
        return new

    def _facts(self) -> tuple[list[QueuedJob], Slots]:
        queue = [
            QueuedJob(
                id=job.id,
                owner=job.owner,
                priority=job.priority,
                preemptible=job.preemptible,
                submitted_at=NOW + timedelta(seconds=job.at),
                requirement=ALONE,
                time_limit=_seconds(job.limit),
                estimate=_seconds(job.estimate),
                expected=self._expected(job),
            )
            for job in self._queue.values()
        ]
        running = [
            RunningJob(
                id=job.id,
                owner=job.owner,
                priority=job.priority,
                preemptible=job.preemptible,
                idle_work=job.id >= IDLE,
                yields=job.id in self._leaving,
                ends=self._ends(job, started),
                requirement=ALONE,
                gpu_uuids=uuids,
                started_at=started,
                lasts=_seconds(job.limit) or _seconds(job.estimate),
                expected=self._expected(job),
            )
            for job, started, uuids in self._running.values()
        ]
        on = {uuid: job.id for job, _, uuids in self._running.values() for uuid in uuids}
        kept = {uuid: id_ for uuid, (id_, _) in self._kept.items()}
        gpus = [slot(n, reserved_for=kept.get(gpu_uuid(n))) for n in range(GPUS)]
        taken = tuple(
            replace(gpu, jobs=(on[gpu.gpu_uuid],), exclusive=True) if gpu.gpu_uuid in on else gpu
            for gpu in gpus
        )
        return queue, Slots(host="gpubox", gpus=taken, running=tuple(running))

    def _ends(self, job: Recorded, started: datetime) -> Ends | None:
        """By the progress that the job reports."""
        ran = self._now - started
        if not job.reports or not ran:
            return None
        progress = Progress(min(1.0, ran.total_seconds() / job.took))
        return expected_end(started, run_time(started, progress, self._now, None), self._now)

    def _expected(self, job: Recorded) -> RunTime:
        limit, estimate = _seconds(job.limit), _seconds(job.estimate)
        return expected(job.owner, job.name, limit, estimate, self._history)

    def _predict(self, jobs: set[int]) -> None:
        if not jobs:
            return
        queue, slots = self._facts()
        for id_, found in self._forecast(queue, slots, POLICY, self._now).items():
            # A job that starts at once is no prediction.
            if id_ in jobs and found.p50 and found.p90 and found.p50 > self._now:
                self._made.append((id_, found.p50, found.p90))

    def _plan(self) -> None:
        if not self._queue:
            return
        queue, slots = self._facts()
        made = plan(queue, slots, POLICY, self._now)
        for request in made.preemptions:
            at = self._now + LEAVES_AFTER
            self._leaving[request.job_id] = at
            self._kept |= dict.fromkeys(request.gpu_uuids, (request.for_job or 0, at + KEEP_FREED))
        for placement in made.placements:
            job = self._queue.pop(placement.job_id)
            self._running[job.id] = (job, self._now, placement.gpu_uuids)
            self._started.setdefault(job.id, self._now)


KINDS: tuple[tuple[str, Says, bool], ...] = (
    ("exact estimates", exact_estimate, False),
    ("rough estimates", rough_estimate, False),
    ("limits of twice the run time", double_limit, False),
    ("limits of 1.2 to 8 times", loose_limit, False),
    ("nothing said, programs run before", nothing, True),
    ("nothing said, no program run before", nothing, False),
)


MIXED = "mixed: preemption, idle work, progress"


def mixed(scale: float = 1, seeds: int = 5) -> list[Recording]:
    return [
        recording(MIXED, rough_estimate, seed=seed, scale=scale, named=True, mixed=True)
        for seed in range(seeds)
    ]


def recordings(scale: float = 1, seeds: int = 5) -> list[Recording]:
    return [
        recording(label, says, seed=seed, scale=scale, named=named)
        for label, says, named in KINDS
        for seed in range(seeds)
    ]


def replayed(found: list[Recording], predict: Predict = forecast) -> dict[str, list[Checked]]:
    """All predictions of each kind of recording."""
    checked: dict[str, list[Checked]] = {}
    for each in found:
        checked.setdefault(each.label, []).extend(Replay(each, predict).run())
    return checked


def sampled(
    queue: Sequence[QueuedJob], slots: Slots, policy: PlanPolicy, now: datetime, runs: int = 20
) -> dict[int, Estimate]:
    """The median and the 90th percentile of the starts in so many drawn futures.

    p90 is at least a third of the wait after p50, as in `forecast`.
    """
    chance, starts = random.Random(now.timestamp()), dict[int, list[datetime]]()
    for _ in range(runs):
        for id_, start in _drawn_starts(chance, queue, slots, policy, now).items():
            starts.setdefault(id_, []).append(start)
    estimates = {}
    for id_, known in starts.items():
        if len(known) == runs:
            ordered = sorted(known)
            p50, p90 = ordered[runs // 2], ordered[runs * 9 // 10]
            p90 = max(p90, p50 + (p50 - now) // QUEUE_PARTS)
            estimates[id_] = Estimate(position=1, p50=p50, p90=p90)
    return estimates


def _drawn_starts(
    chance: random.Random,
    queue: Sequence[QueuedJob],
    slots: Slots,
    policy: PlanPolicy,
    now: datetime,
) -> dict[int, datetime]:
    def drawn(run_time: RunTime, beyond: timedelta = timedelta()) -> timedelta:
        typical = max(0.001, run_time.p50.total_seconds())
        sigma = log(max(1.0, run_time.p90.total_seconds() / typical)) / Z90
        draws = (timedelta(seconds=typical * exp(chance.gauss(0, sigma))) for _ in range(40))
        return next((took for took in draws if took > beyond), beyond * 1.1)

    def end(job: RunningJob) -> Ends | None:
        if job.ends is not None:
            at = now + drawn(RunTime(job.ends.p50 - now, job.ends.p90 - now))
        elif job.expected is not None and not job.idle_work:
            at = job.started_at + drawn(job.expected, now - job.started_at)
        else:
            return None
        return Ends(at, at)

    running = tuple(replace(job, ends=end(job)) for job in slots.running)
    world, rules = replace(slots, running=running), PlannerThresholds()
    jobs = [
        dataclasses.replace(
            job, expected=job.expected and RunTime(took := drawn(job.expected), took)
        )
        for job in queue
    ]
    made = place(jobs, world, policy, now, rules)
    future = Simulation(Queue(jobs, made), world, policy, rules, now, made, late=False)
    future.run(len(jobs))
    return future.starts


def summary(checked: list[Checked]) -> tuple[float, float, float]:
    """Median error and median signed error of p50, in seconds; % of starts before p90."""
    errors = [each.error_s for each in checked]
    before = 100 * sum(each.is_before_p90 for each in checked) / len(checked)
    return median(map(abs, errors)), median(errors), before


def main() -> None:
    predict = sampled if sys.argv[1:] == ["sampled"] else forecast
    for scale, unit in ((1, "100 s"), (60, "100 min")):
        print(f"{unit} of work{'':32} median error   signed   before p90")
        found = replayed(recordings(scale) + mixed(scale), predict)
        everything = [each for checked in found.values() for each in checked]
        for label, checked in {**found, "all": everything}.items():
            error, signed, before = summary(checked)
            print(f"  {label:42} {error:10.1f} s {signed:+7.1f} s {before:9.0f} %")


if __name__ == "__main__":
    main()
