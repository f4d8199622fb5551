"""A synthetic trace of jobs that declare no GPU memory, and its replay with sizes from history.

No public trace has commands, users and memory peaks together, so the shape is assumed: each user
runs a few scripts again and again, the memory of a script varies by some percent between runs, and
some scripts also take another batch size from run to run.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from scheduler.queue.planner.sizing import SizingPolicy, fingerprint, suggest
from tests.builders import GIB

GPU_BYTES = 80 * GIB
# The part of its run time after which a job that is too small fails.
FAILS_AFTER = 0.1
BATCHES = (1.0, 1.25, 1.5, 2.0)


@dataclass(frozen=True, slots=True)
class Run:
    """One job of the trace; `peak_bytes` is known only after it has run."""

    user: int
    argv: tuple[str, ...]
    seconds: float
    peak_bytes: int


@dataclass(slots=True)
class Outcome:
    """held_s: GPU-seconds held, a shared GPU by the part of its memory."""

    held_s: float = 0.0
    whole_s: float = 0.0
    retries: int = 0
    sized: int = 0


def trace(jobs: int, seed: int) -> Iterator[Run]:
    chance = random.Random(seed)
    scripts = [_script(chance, user) for user in range(40) for _ in range(chance.randint(1, 4))]
    weights = [chance.paretovariate(1.2) for _ in scripts]
    for user, name, base, varies in chance.choices(scripts, weights, k=jobs):
        batch = chance.choice(BATCHES) if varies else 1.0
        peak = min(GPU_BYTES, int(base * batch * chance.lognormvariate(0, 0.04)))
        argv = ("python", name, "--batch", f"{16 * batch:g}", "--seed", f"{chance.randrange(99)}")
        yield Run(user, argv, chance.lognormvariate(7.8, 1.2), peak)


def _script(chance: random.Random, user: int) -> tuple[int, str, float, bool]:
    base = min(60.0, max(1.0, chance.lognormvariate(2.2, 0.9))) * GIB
    return user, f"train{chance.choice('abcdefghij')}.py", base, chance.random() < 0.15


def replay(jobs: Iterator[Run], policy: SizingPolicy) -> Outcome:
    """Each job gets what earlier runs suggest, and the whole GPU when it failed of that."""
    peaks: dict[str, list[int]] = defaultdict(list)
    outcome = Outcome()
    for run in jobs:
        kind = fingerprint(run.user, run.argv)
        suggestion = suggest(peaks[kind], policy, GPU_BYTES)
        outcome.whole_s += run.seconds
        part = 1.0
        if suggestion is not None:
            outcome.sized += 1
            part = suggestion.memory_bytes / GPU_BYTES
            if run.peak_bytes > suggestion.memory_bytes:
                outcome.retries += 1
                outcome.held_s += part * FAILS_AFTER * run.seconds
                part = 1.0
        outcome.held_s += part * run.seconds
        peaks[kind].insert(0, run.peak_bytes)
    return outcome
