"""Thirty days of the simulated server before its last two hours, in minutes and hours; pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import ceil, floor, prod
from random import Random

from msgspec import Struct

from monitor.gpus.sampling.probes import simulated
from monitor.gpus.sampling.probes.simulated import (
    FIRST_PID,
    GIB,
    IDLE_W,
    LIMIT_W,
    RESERVED,
    TOTAL,
    Shape,
    noise,
    pid_of,
)

DAY_S, HOUR_S, MINUTE_S = 86_400, 3_600, 60
DAYS = 30
# Very short programs would fill the table of processes.
SHORTEST_S = 600
# A gap in every chart, as if gpucoord had not been running.
DOWN_FROM_S, DOWN_UNTIL_S = 15 * HOUR_S + 600, 14 * HOUR_S + 900
PEOPLE = ("alice", "bob", "charlie", "dana", "erin", "frank")
# The nightly parameter sweep, in UTC.
NIGHT_GPU, NIGHT_FROM_S, NIGHT_S = 5, 20 * HOUR_S, 10 * HOUR_S
# GPUs of the first eight for interactive runs, with their free memory.
ROOM_GIB = {0: 60, 7: 70}


class DemoLife(Struct, frozen=True):
    """One process on one GPU, from beginning to end."""

    user: str | None
    program: str
    pid: int
    start_ticks: int
    gpu: int
    began: float
    ended: float
    gib: float | None
    shape: Shape

    def at(self, t: float, seed: int) -> float:
        """Its use in percent of the GPU."""
        return self.shape(t - self.began, noise(t, 600, seed, self.pid))


class Load(Struct, frozen=True):
    """A GPU in one step: its use, and each process's part of it in percent."""

    t: int
    gpu: int
    busy_pct: float
    parts: tuple[tuple[DemoLife, float], ...]

    @property
    def memory_bytes(self) -> int:
        return min(TOTAL - RESERVED, sum(int((life.gib or 0) * GIB) for life, _ in self.parts))

    @property
    def power_w(self) -> float:
        return IDLE_W + (LIMIT_W * 0.94 - IDLE_W) * (self.busy_pct / 100)

    @property
    def figures(self) -> Mapping[str, float]:
        """Means of the step, by the name of the figure of the GPU."""
        return {
            "utilization_pct": self.busy_pct,
            "memory_used_bytes": self.memory_bytes,
            "power_w": self.power_w,
            "temperature_c": 30 + 0.46 * self.busy_pct,
        }


def lives(gpus: int, seed: int, now_t: int) -> list[DemoLife]:
    """All processes on GPUs in these days."""
    since = now_t - DAYS * DAY_S
    return [
        *_scripted(gpus, seed, since, now_t),
        *_own(gpus, seed, since, now_t),
        *_nightly(gpus, since, now_t),
    ]


def loads(
    all_lives: Sequence[DemoLife], gpus: int, seed: int, times: Sequence[int]
) -> Iterator[Load]:
    """Each GPU at each of these times."""
    on: dict[tuple[int, int], list[DemoLife]] = {}
    for life in all_lives:
        for hour in range(int(life.began // HOUR_S), int(life.ended // HOUR_S) + 1):
            on.setdefault((life.gpu, hour), []).append(life)
    for t in times:
        for gpu in range(gpus):
            others = on.get((gpu, t // HOUR_S), ())
            there = [life for life in others if life.began <= t < life.ended]
            yield _load(t, gpu, there, seed)


def watched(t: int, now_t: int) -> bool:
    """Whether gpucoord was running at that time."""
    return not now_t - DOWN_FROM_S <= t < now_t - DOWN_UNTIL_S


def _load(t: int, gpu: int, there: Sequence[DemoLife], seed: int) -> Load:
    demands = [life.at(t, seed) for life in there]
    busy = 100 * (1 - prod(1 - demand / 100 for demand in demands))
    scale = busy / sum(demands) if sum(demands) else 0.0
    parts = zip(there, (demand * scale for demand in demands), strict=True)
    return Load(t, gpu, busy, tuple(parts))


def _scripted(gpus: int, seed: int, since: int, until: int) -> Iterator[DemoLife]:
    """The runs of the scenario's programs, under the pids that the scenario gives them."""
    scripts: list[simulated.Script] = []
    for turn, first in enumerate(range(0, gpus, 8)):
        scripts += simulated.cast(first, min(8, gpus - first), turn + seed)
    for number, script in enumerate(scripts):
        if script.runs_s < SHORTEST_S:
            continue
        first = floor((since - script.offset_s) / script.every_s)
        for run in range(first, ceil((until - script.offset_s) / script.every_s)):
            began = run * script.every_s + script.offset_s
            if began + script.runs_s > since:
                yield from _runs(script, number, run, began)


def _runs(script: simulated.Script, number: int, run: int, began: float) -> Iterator[DemoLife]:
    for gpu in script.gpus:
        yield DemoLife(
            user=script.user,
            program=script.program,
            pid=pid_of(number, run),
            # An unknown process has an unknown begin.
            start_ticks=int(began * 100) if script.user else 0,
            gpu=gpu,
            began=began,
            ended=began + script.runs_s,
            gib=script.gib,
            shape=script.shape,
        )


def _nightly(gpus: int, since: int, until: int) -> Iterator[DemoLife]:
    """A user's sweep on nine of ten nights: a recurring pattern for the page of incidents."""
    if gpus <= NIGHT_GPU:
        return
    for day in range(since // DAY_S + 1, until // DAY_S):
        began = day * DAY_S + NIGHT_FROM_S
        if day % 10 and began + NIGHT_S < until - 2 * HOUR_S:
            yield DemoLife(
                user="frank",
                program="python",
                pid=FIRST_PID + 800_000 + day % 90_000,
                start_ticks=began * 100,
                gpu=NIGHT_GPU,
                began=began,
                ended=began + NIGHT_S,
                gib=20,
                shape=simulated.hog,
            )


def _own(gpus: int, seed: int, since: int, until: int) -> Iterator[DemoLife]:
    """Interactive runs: mostly in office hours, long runs over night."""
    dice = Random(seed)
    for gpu in (gpu for gpu in range(gpus) if gpu in ROOM_GIB):
        t = since + dice.uniform(0, 4 * HOUR_S)
        while t < until:
            office = 8 <= t % DAY_S / HOUR_S < 19
            ended = t + dice.uniform(0.7, 3.5 if office else 8) * HOUR_S
            yield DemoLife(
                user=dice.choice(PEOPLE),
                program=dice.choice(("python", "python3", "torchrun", "jupyter")),
                pid=FIRST_PID + 700_000 + dice.randrange(90_000),
                start_ticks=int(t * 100),
                gpu=gpu,
                began=t,
                ended=ended,
                gib=ROOM_GIB[gpu] * dice.uniform(0.2, 0.9),
                shape=dice.choice((simulated.training, simulated.serving, simulated.idle)),
            )
            t = ended + dice.uniform(0.1, 1.5 if office else 6) * HOUR_S
