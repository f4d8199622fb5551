"""Violations of random users within their entitlement (at most 1 % listed), and of users above it.

Each user has a GPU for a week, is entitled to 30 % of a GPU, and a job of another user waits.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC
from random import Random
from typing import Any

import pytest

from monitor.incidents.policy.findings import GpuTimePolicy
from reports.figures.policy.advice import HIGH_PCT, HOUR_S, SUSTAINED_PCT, Standards, judged
from reports.figures.policy.jobs import JobWait, Waiting
from reports.figures.policy.ledger import GpuPart, Ledger, Step, UseFact, UsePart

USERS, WEEK_H = 40, 7 * 24
ENTITLED_PCT = 30.0
# The percentage of each hour of the week.
Habit = Callable[[Random], list[float]]


def runs(share: float, length_h: int) -> Habit:
    """97 % in runs at random times, at most this part of the week."""

    def use(rng: Random) -> list[float]:
        hours = [0.0] * WEEK_H
        left = int(share * WEEK_H)
        while left > 0:
            begin = rng.randrange(WEEK_H)
            for hour in range(begin, min(WEEK_H, begin + rng.randint(1, length_h))):
                if not hours[hour] and left:
                    hours[hour], left = 97.0, left - 1
        return hours

    return use


def each_hour(low: float, high: float, part: float = 1.0) -> Habit:
    return lambda rng: [
        rng.uniform(low, high) if rng.random() < part else 0.0 for _ in range(WEEK_H)
    ]


def nights(rng: Random) -> list[float]:
    return [rng.uniform(88, 100) * (hour % 24 < 10) for hour in range(WEEK_H)]


def share_listed(
    habit: Habit, *, known: float = 1.0, processes: int = 1, waits_s: float = HOUR_S
) -> float:
    """The part of the users that a report lists. processes: one after the other, each hour."""
    names = {f"u{n}": f"GPU {n}" for n in range(USERS)}
    hours = {name: habit(Random(f"{name} {known} {processes}")) for name in names}
    entitled = ENTITLED_PCT / 100
    ledger = Ledger(
        dict.fromkeys(names, 0), UTC, HOUR_S, HIGH_PCT, SUSTAINED_PCT,
        lambda _: entitled,
    )  # fmt: skip
    for hour in range(WEEK_H):
        uses = {name: [_part(name, hours[name][hour], known, hour % processes)] for name in names}
        begin = hour * HOUR_S
        gpus = {name: GpuPart(HOUR_S, None, 0.0, 0.0) for name in names}
        waiting = Waiting()
        waiting.add(JobWait("other", "normal", 0, 0, False, "GpuTaken"), USERS * waits_s)
        ledger.add(Step(begin, begin + HOUR_S, gpus, uses, {}, waiting))
    standards = Standards(
        gpu_time=GpuTimePolicy(),
        exemptions=(),
        entitled=lambda _: ENTITLED_PCT,
        excess_pct=lambda name: (
            100 * (ledger.owners[name].split.held / (WEEK_H * HOUR_S) - entitled)
        ),
        period_s=WEEK_H * HOUR_S,
    )
    listed = {found.user for found in judged(ledger.processes.values(), names, standards)[0]}
    return len(listed) / USERS


def _part(name: str, pct: float, known: float, number: int) -> UsePart:
    pid = 1000 * number + int(name[1:])
    use = UseFact(
        id=pid, gpu=name, host="box", owner=name, first_t=0.0, pid=pid, start_ticks=1,
        program="python", container="", uid=1001, job_ref="", is_job=False,
    )  # fmt: skip
    known_s = known * HOUR_S if pct else 0.0
    return UsePart(use, pct / 100 * known_s, HOUR_S if pct else 0.0, known_s, 0.0, 0.0, None)


WITHIN: dict[str, tuple[Habit, dict[str, Any]]] = {
    "28 % of the week, in short runs": (runs(0.28, 3), {}),
    "28 % of the week, in long runs": (runs(0.28, 20), {}),
    "28 % of the week, by many processes": (runs(0.28, 5), {"processes": 5}),
    "each hour, without an hour above the level": (each_hour(20, 79), {}),
    "half of the week, while no job waits": (runs(0.5, 10), {"waits_s": 0.0}),
    "less than the least time": (runs(0.006, 1), {}),
    "60 % of the week, of which half is known": (runs(0.6, 10), {"known": 0.5}),
}


@pytest.mark.parametrize("name", WITHIN)
def test_users_within_their_entitlement_are_not_listed(name: str) -> None:
    habit, facts = WITHIN[name]
    assert share_listed(habit, **facts) <= 0.01


ABOVE: dict[str, tuple[Habit, dict[str, Any]]] = {
    "nights": (nights, {}),
    "half of the week, in runs": (runs(0.5, 10), {}),
    "half of the week, by many processes": (runs(0.5, 10), {"processes": 7}),
    "85 % of most hours": (each_hour(81, 89, 0.7), {}),
    "half of the week, while jobs of others wait for a quarter": (
        runs(0.5, 4),
        {"waits_s": 900.0},
    ),
}


@pytest.mark.parametrize("name", ABOVE)
def test_users_above_their_entitlement_are_listed(name: str) -> None:
    habit, facts = ABOVE[name]
    assert share_listed(habit, **facts) >= 0.9
