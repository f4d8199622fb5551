"""Makes up two hours of finished jobs: who ran what, where, when, and how it ended."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from random import Random

from monitor.probes.scenario import Load
from monitor.probes.workloads import FIRST_PID
from scheduler.jobs import Outcome

HOURS = 2
# GPUs of the first eight that the scenario leaves room on, with the memory that is free there.
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
    """A job that has ended."""

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

    @property
    def load(self) -> Load:
        """What it did on its GPU, for the charts."""
        return Load(
            gpu=self.gpu,
            pid=FIRST_PID + 900_000 + int(self.started_at.timestamp()) % 90_000,
            gib=self.gib,
            began=self.started_at.timestamp(),
            ended=self.ended_at.timestamp(),
        )


def past_jobs(gpus: int, seed: int, now: datetime) -> list[PastJob]:
    """Jobs one after another on each GPU with room, oldest first; every kind of end is there."""
    dice = Random(seed)
    jobs = [job for gpu in range(gpus) if gpu in ROOM_GIB for job in _on(gpu, dice, now)]
    ends = iter(_unhappy_ends())
    every = max(1, len(jobs) // 5)
    jobs = [_ended(job, next(ends, {}) if i % every == 2 else {}) for i, job in enumerate(jobs)]
    return sorted(jobs, key=lambda job: job.submitted_at)


def _on(gpu: int, dice: Random, now: datetime) -> Iterator[PastJob]:
    at = now - timedelta(hours=HOURS) + timedelta(seconds=dice.uniform(60, 600))
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

    return replace(job, **end)  # type: ignore[arg-type]


def log_of(job: PastJob) -> str:
    """What such a job would have printed."""
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
