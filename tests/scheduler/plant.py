"""A machine to try the utilisation target on: jobs load their GPU only some time after they start.

Each job adds `each` % to one GPU, `dead_s` after its start and over `ramp_s` more; a GPU is never
more than 100 % busy. The queue is never empty unless said. What can be done is whole: a job starts
or it does not, and none is ever ended early.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from scheduler.limits.throttle.policy.pressure import (
    SETTLE_S,
    TARGET_SMOOTH_S,
    Level,
    UtilisationInput,
    UtilisationPolicy,
    looked,
    starts,
)
from scheduler.limits.throttle.policy.throttle import Smoothed

TICK_S = 5.0
# (time, true use, running, started) of each look.
Trace = list[tuple[float, float, int, int]]


@dataclass
class Plant:
    gpus: int = 8
    each: float = 30.0
    dead_s: float = 30.0
    ramp_s: float = 10.0
    lasts_s: float = 3600.0
    others: Callable[[float], float] = lambda _t: 0.0
    policy: UtilisationPolicy = field(default_factory=UtilisationPolicy)
    seed: int = 1

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._jobs: list[tuple[int, float, float]] = []
        self._mean = Smoothed()
        self.level = Level()
        self.t = 0.0
        self.trace: Trace = []

    def run(self, seconds: float) -> Trace:
        """(time, true use, running, started) of each look."""
        until = self.t + seconds
        while self.t < until:
            self._look()
            self.t += TICK_S
        return self.trace

    def _look(self) -> None:
        self._jobs = [job for job in self._jobs if job[2] > self.t]
        loads = [self._load(gpu) for gpu in range(self.gpus)]
        use = sum(loads) / self.gpus
        noisy = min(100.0, max(0.0, use + self._random.uniform(-3, 3)))
        self._mean = self._mean.fed(noisy, TICK_S, TARGET_SMOOTH_S)
        with_jobs = {gpu for gpu, _, _ in self._jobs}
        quiet = [g for g in range(self.gpus) if g not in with_jobs and loads[g] < 10]
        utilisation = UtilisationInput(
            use=self._mean.mean(),
            others=self.others(self.t),
            running=len(self._jobs),
            young=sum(self.t - since < SETTLE_S for _, since, _ in self._jobs),
            quiet=len(quiet),
            gpus=self.gpus,
        )
        self.level = looked(self.level, utilisation, self.policy, self.t, TICK_S)
        allowed = starts(self.level, utilisation, self.policy)
        count = len(quiet) if allowed is None else allowed
        for _ in range(count):
            self._start()
        self.trace.append((self.t, use, len(self._jobs), count))

    def _load(self, gpu: int) -> float:
        ours = sum(self._ramp(since) for on, since, _ in self._jobs if on == gpu) * self.each
        return min(100.0, ours + self.others(self.t))

    def _ramp(self, since: float) -> float:
        return min(1.0, max(0.0, (self.t - since - self.dead_s) / self.ramp_s))

    def _start(self) -> None:
        counts = [sum(on == gpu for on, _, _ in self._jobs) for gpu in range(self.gpus)]
        gpu = counts.index(min(counts))
        lasts = self._random.expovariate(1 / self.lasts_s)
        self._jobs.append((gpu, self.t, self.t + max(30.0, lasts)))


def within(trace: Trace, low: float, high: float) -> float:
    """The part of the looks in which the use was within these."""
    return sum(low <= use <= high for _, use, _, _ in trace) / len(trace)


def turns(trace: Trace, swing: float) -> int:
    """How often the use turned after it had moved by more than `swing`."""
    reversals, way, extreme = 0, 0, trace[0][1]
    for _, use, _, _ in trace:
        if (way >= 0 and use > extreme) or (way <= 0 and use < extreme):
            extreme, way = use, way or (1 if use > extreme else -1)
        elif abs(use - extreme) > swing:
            reversals, way, extreme = reversals + 1, -way or (1 if use > extreme else -1), use
    return reversals
