"""Two hours of finished jobs of the demo, and the snapshots of that time."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from random import Random

from monitor.facts.readings import ClaimFact, Snapshot
from monitor.gpus.policy import changes as gpu_changes
from monitor.gpus.policy.changes import Note
from monitor.gpus.policy.states import with_states
from monitor.gpus.sampling.probes.simulated.scenario import Load, Scenario
from monitor.gpus.sampling.probes.simulated.workloads import FIRST_PID
from monitor.owners.identity.policy import attribute
from scheduler.facts.jobs import Outcome

# Hours with a sample for each second; fewer of a large server, so that the demo starts soon.
HOURS, HOURS_LARGE = 2, 1
# GPUs of the first eight with free memory in the scenario, and how much.
ROOM_GIB = {0: 60, 6: 20, 7: 70}
PEOPLE = ("alice", "bob", "charlie", "dana", "erin", "frank")
PROGRAMS = (
    ("train vit-base", "python3 train.py --model vit-base --lr 1e-3"),
    ("finetune mistral", "python3 train.py --model mistral-7b --lr 2e-5"),
    ("gpt2 baseline", "python3 train.py --model gpt2-medium"),
    ("probe layers", "python3 train.py --model probe-12 --lr 3e-3"),
    ("ablation no-dropout", "python3 train.py --model ablation-4"),
)
OUT_OF_MEMORY = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 4.00 GiB. GPU 0 has a total"
    " capacity of 79.11 GiB of which 1.73 GiB is free."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PastJob:
    """A job that has ended. number: its id."""

    number: int = 0
    owner: str
    name: str
    command: str
    gpu: int
    gib: int
    submitted_at: datetime
    started_at: datetime
    ended_at: datetime
    outcome: Outcome = Outcome.SUCCEEDED
    exit_code: int | None = 0
    signal: int | None = None
    problem: str = ""
    priority: int = 3
    time_limit: timedelta | None = None

    @property
    def load(self) -> Load:
        """Its load on its GPU, for the charts."""
        return Load(
            gpu=self.gpu,
            pid=FIRST_PID + 900_000 + int(self.started_at.timestamp()) % 90_000,
            gib=self.gib,
            began=self.started_at.timestamp(),
            ended=self.ended_at.timestamp(),
        )


def sampled_hours(gpus: int) -> int:
    """For how many hours before now there are samples and the jobs of `past_jobs`."""
    return HOURS_LARGE if gpus > LARGE else HOURS


def past_jobs(gpus: int, seed: int, now: datetime, first: int = 1) -> list[PastJob]:
    """Jobs one after another on each GPU with free memory, oldest first, with every outcome.

    first: the number of the first of them.
    """
    dice = Random(seed)
    hours = sampled_hours(gpus)
    jobs = [job for gpu in range(gpus) if gpu in ROOM_GIB for job in _on(gpu, dice, now, hours)]
    ends = iter(_unhappy_ends())
    every = max(1, len(jobs) // 5)
    jobs = [_ended(job, next(ends, {}) if i % every == 2 else {}) for i, job in enumerate(jobs)]
    jobs.sort(key=lambda job: job.submitted_at)
    return [replace(job, number=i) for i, job in enumerate(jobs, start=first)]


def _on(gpu: int, dice: Random, now: datetime, hours: int) -> Iterator[PastJob]:
    at = now - timedelta(hours=hours) + timedelta(seconds=dice.uniform(60, 600))
    while (ended := at + timedelta(seconds=dice.uniform(240, 1300))) < now - timedelta(seconds=40):
        name, command = dice.choice(PROGRAMS)
        yield PastJob(
            owner=dice.choice(PEOPLE),
            name=name,
            command=command,
            gpu=gpu,
            gib=round(ROOM_GIB[gpu] * dice.uniform(0.3, 0.95)),
            submitted_at=at - timedelta(seconds=dice.choice((0.04, 3, 95, 640, 1500))),
            started_at=at,
            ended_at=ended,
            priority=dice.choice((2, 3, 3, 3, 4)),
        )
        at = ended + timedelta(seconds=dice.uniform(15, 240))


def _unhappy_ends() -> list[dict[str, object]]:
    return [
        {"outcome": Outcome.FAILED, "exit_code": 1},
        {"outcome": Outcome.CANCELLED, "exit_code": 143},
        {"outcome": Outcome.TIMED_OUT, "exit_code": None, "signal": 9},
        {
            "outcome": Outcome.FAILED,
            "exit_code": 127,
            "command": "pyhton3 train.py --model vit-base",
        },
    ]


def _ended(job: PastJob, end: dict[str, object]) -> PastJob:
    job = replace(job, **end)  # type: ignore[arg-type]
    if job.outcome is not Outcome.TIMED_OUT:
        return job
    limit = timedelta(minutes=(job.ended_at - job.started_at) // timedelta(minutes=1))
    return replace(job, time_limit=limit, ended_at=job.started_at + limit)


def log_of(job: PastJob) -> str:
    """The output of such a job."""
    if job.exit_code == 127:
        return f"/bin/sh: 1: {job.command.split()[0]}: not found\n"
    return "\n".join(_lines(job)) + "\n"


def _lines(job: PastJob) -> Iterator[str]:
    dice = Random(job.name + job.owner)
    seconds = (job.ended_at - job.started_at).total_seconds()
    yield f"{job.name}: simulated, nothing was computed"
    for step in range(25, int(seconds / 2) * 25, 25):
        loss = 1.7 + 8.4 * math.exp(-step / 3000) + dice.gauss(0, 0.03)
        yield f"step {step:>6}  loss {loss:.4f}  {118 + dice.gauss(0, 3):.0f} k tokens/s"
    if job.exit_code == 0:
        yield "done"
    elif job.exit_code == 1:
        yield from ("Traceback (most recent call last):", '  File "train.py", line 214, in step')
        yield OUT_OF_MEMORY
    elif job.exit_code == 143:
        yield "SIGTERM: saving checkpoints/last.pt … done"


# The last minutes in seconds, older times in larger steps: a chart cannot show more. Large servers
# have larger steps, so that the demo starts soon.
FINE_MINUTES, COARSE_STEP_S = 15, 5
LARGE, FINE_MINUTES_LARGE, COARSE_STEP_LARGE_S = 16, 2, 20
# A GPU stays warm for a while after a job.
COOLING_S = 90


def history(
    scenario: Scenario, jobs: Sequence[PastJob], host: str, now: datetime
) -> Iterator[tuple[Snapshot, list[Note]]]:
    """Snapshots up to `now`, oldest first, each with its events."""
    last: Snapshot | None = None
    for at in _instants(now, scenario.size):
        t = at.timestamp()
        sweep = scenario.at(at, _loads(jobs, t))
        claims = _claims(jobs, scenario, t)
        processes = attribute(sweep.processes, sweep.identities, claims)
        before = {gpu.uuid: gpu for gpu in last.gpus} if last else {}
        states = with_states(sweep.gpus, processes, claims, before, at, watched=False)
        snapshot = Snapshot(
            seq=last.seq + 1 if last else 1,
            at=at,
            probe="simulated",
            host=scenario.host(at, host),
            gpus=states.gpus,
            processes=processes,
        )
        yield snapshot, gpu_changes.of_sweep(last, snapshot, states.changes)
        last = snapshot


def _instants(now: datetime, gpus: int) -> Iterator[datetime]:
    end = int(now.timestamp())
    minutes = FINE_MINUTES_LARGE if gpus > LARGE else FINE_MINUTES
    step = COARSE_STEP_LARGE_S if gpus > LARGE else COARSE_STEP_S
    fine = end - 60 * minutes
    for t in [*range(end - 3600 * sampled_hours(gpus), fine, step), *range(fine, end)]:
        yield datetime.fromtimestamp(t, now.tzinfo)


def _loads(jobs: Sequence[PastJob], t: float) -> list[Load]:
    return [job.load for job in jobs if job.started_at.timestamp() <= t < _end_of(job) + COOLING_S]


def _claims(jobs: Sequence[PastJob], scenario: Scenario, t: float) -> list[ClaimFact]:
    return [
        ClaimFact(
            job_ref=str(job.number),
            seen=job.started_at,
            gpu_uuid=scenario.uuids[job.gpu],
            owner=job.owner,
            leader_pid=job.load.pid,
        )
        for job in jobs
        if job.started_at.timestamp() <= t < _end_of(job)
    ]


def _end_of(job: PastJob) -> float:
    return job.ended_at.timestamp()
