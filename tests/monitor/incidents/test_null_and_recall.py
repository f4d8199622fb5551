"""Each detector on users without structure (at most 1 % accused) and with it (at least 90 % found).

A crowd has one user on each GPU, all without structure or all with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from random import Random

import pytest

from monitor.facts import incidents as rules
from monitor.facts.readings import CpuProcess, ProcessReading, Snapshot
from monitor.incidents.rules import cpu as cpu_rules
from monitor.incidents.rules.cpu import CpuWindows
from monitor.incidents.rules.evaluate import IncidentPolicies
from tests.builders import GIB, NOW, claim, gpu, process
from tests.monitor.hog_traces import Trace, policies, waiting
from tests.monitor.incidents.habits import habit, patterns_of, random_hours, random_runs

USERS = 60
MOST_ACCUSED, LEAST_FOUND = 0.01, 0.9


@dataclass
class Crowd(Trace):
    """Notes of whom one rule opens an incident. Users have the names u0, u1 and so on."""

    rule: str = ""
    accused: set[str] = field(default_factory=set)

    def look(self, seen: Snapshot) -> None:
        super().look(seen)
        self.accused |= {
            finding.owner or str(finding.gpu and finding.gpu.index)
            for finding in self.found
            if finding.rule == self.rule and finding.opens
        }


def only(rule: str) -> IncidentPolicies:
    """Other rules are off, for speed."""
    switches = {
        "sustained_on": rules.SUSTAINED,
        "fair_on": rules.FAIR_SHARE,
        "hog_on": rules.MEMORY_HOG,
        "leak_on": rules.LEAK,
        "idle_on": rules.IDLE_HELD,
        "empty_on": rules.CLAIMED_EMPTY,
        "unused_on": rules.UNUSED_GPUS,
        "unclaimed_on": rules.UNCLAIMED,
    }
    over = rule in (rules.OVER_MEMORY, rules.EXTRA_GPUS)
    return policies(over_on=over, **{name: rule == of for name, of in switches.items()})


def crowd(rule: str, **changes: object) -> Crowd:
    facts: dict[str, object] = {"gpus": USERS, "every_s": 30.0}
    return Crowd(policies=only(rule), rule=rule, **(facts | changes))  # type: ignore[arg-type]


# The processes of a user at a minute.
Behaviour = Callable[[int, float], Iterable[ProcessReading]]


def share_accused(trace: Crowd, minutes: float, behaviour: Behaviour, users: int = USERS) -> float:
    def all_of_them(minute: float) -> Iterable[ProcessReading]:
        return [reading for user in range(users) for reading in behaviour(user, minute)]

    trace.play(minutes, all_of_them)
    return len(trace.accused) / users


def of(user: int, on: int | None = None, **changes: object) -> ProcessReading:
    on = user if on is None else on
    facts: dict[str, object] = {"pid": 1000 + user, "user": f"u{user}"}
    return process(on=on, **(facts | changes))


def sustained(rng: Random, structured: bool) -> float:
    low, high = (82.0, 100.0) if structured else (20.0, 100.0)
    return share_accused(
        crowd(rules.SUSTAINED), 30, lambda user, m: [of(user, sm_pct=rng.uniform(low, high))]
    )


def moving(rng: Random, structured: bool) -> float:
    """98 % of one of three GPUs in turn; or each of them is as busy as that on average, anyhow."""
    dwell = {user: rng.uniform(0.4, 1.5) for user in range(20)}

    def use(user: int, minute: float) -> Iterable[ProcessReading]:
        here = int(minute / dwell[user]) % 3
        for n in range(3):
            pct = 98.0 * (n == here) if structured else 98.0 * (rng.random() < 1 / 3)
            yield of(user, 3 * user + n, sm_pct=pct)

    return share_accused(crowd(rules.SUSTAINED, every_s=5.0), 14, use, users=20)


def fair_share(rng: Random, structured: bool) -> float:
    """The fair share is 70 % of each machine, which has one GPU."""
    low, high = (78.0, 100.0) if structured else (20.0, 100.0)
    shares = {"u0": 70.0}
    accused = 0.0
    for _ in range(USERS // 4):
        one = crowd(rules.FAIR_SHARE, gpus=1, demand=[waiting("bob")], shares=shares)
        accused += share_accused(
            one, 15, lambda _, m: [of(0, sm_pct=rng.uniform(low, high))], users=1
        )
    return accused / (USERS // 4)


def memory_hog(rng: Random, structured: bool) -> float:
    low, high = (66, 80) if structured else (16, 72)
    return share_accused(
        crowd(rules.MEMORY_HOG),
        30,
        lambda user, m: [of(user, memory_bytes=rng.randint(low * GIB, high * GIB))],
    )


def leak(rng: Random, structured: bool) -> float:
    """Growth with noise; or a random walk, of the same size."""
    held = [rng.uniform(20, 40) for _ in range(USERS)]
    growth = [rng.uniform(2, 8) / 120 for _ in range(USERS)]

    def use(user: int, minute: float) -> Iterable[ProcessReading]:
        held[user] = max(5.0, held[user] + (growth[user] if structured else rng.gauss(0, 0.4)))
        return [of(user, memory_bytes=int((held[user] + rng.uniform(0, 0.1)) * GIB))]

    return share_accused(crowd(rules.LEAK), 110, use)


def idle_held(rng: Random, structured: bool) -> float:
    """A keep-alive of 0.3 to 1.5 %; or bursts at random, of 10 % on average. Others wait."""
    part = {user: rng.uniform(0.003, 0.015) if structured else 0.1 for user in range(USERS)}

    def use(user: int, minute: float) -> Iterable[ProcessReading]:
        if structured:
            pct = 100.0 * part[user] * rng.uniform(0.5, 1.3)
        else:
            pct = 100.0 * (rng.random() < part[user])
        return [of(user, sm_pct=pct, memory_bytes=20 * GIB)]

    return share_accused(crowd(rules.IDLE_HELD, demand=[waiting("bob")]), 75, use)


def orphaned(rng: Random, structured: bool) -> float:
    """Memory without a process that stays; or that comes and goes with other programs."""
    trace = crowd(rules.ORPHANED)
    since = [NOW] * USERS
    for _ in range(60):
        for on in range(USERS):
            if not structured and rng.random() < 0.5:
                since[on] = trace.at
        size = 4 * GIB
        trace.gpus = [gpu(on, orphaned_bytes=size, orphaned_since=since[on]) for on in range(USERS)]
        trace.play(0.5, lambda minute: [])
    return len(trace.accused) / USERS


def booked(gpus_of_each: int = 1, **facts: object) -> list[object]:
    return [
        claim(str(user), on=user * gpus_of_each + n, owner=f"u{user}", since=NOW, **facts)
        for user in range(USERS // gpus_of_each)
        for n in range(gpus_of_each)
    ]


def of_job(user: int, on: int | None = None, **changes: object) -> ProcessReading:
    return of(user, on, job_ref=str(user), job_owner=f"u{user}", **changes)


def claimed_empty(rng: Random, structured: bool) -> float:
    """No process at all; or processes that come and go."""
    return share_accused(
        crowd(rules.CLAIMED_EMPTY, claims=booked()),
        40,
        lambda user, m: [of_job(user)] if not structured and rng.random() < 0.3 else [],
    )


def unused_gpus(rng: Random, structured: bool) -> float:
    """The second GPU of a job has at most 1 %; or all have random use."""

    def use(user: int, minute: float) -> Iterable[ProcessReading]:
        yield of_job(user, 2 * user, sm_pct=rng.uniform(20, 100))
        pct = rng.uniform(0, 1) if structured else 100.0 * (rng.random() < 0.15)
        yield of_job(user, 2 * user + 1, sm_pct=pct, pid=3000 + user)

    return share_accused(crowd(rules.UNUSED_GPUS, claims=booked(2)), 45, use, users=USERS // 2)


def over_memory(rng: Random, structured: bool) -> float:
    low, high = (23, 30) if structured else (10, 24)
    claims = booked(memory_bytes=20 * GIB, exclusive=False)
    return share_accused(
        crowd(rules.OVER_MEMORY, claims=claims),
        20,
        lambda user, m: [of_job(user, memory_bytes=rng.randint(low * GIB, high * GIB))],
    )


def extra_gpus(rng: Random, structured: bool) -> float:
    """A process on another GPU that works; or only with the context of the driver."""

    def use(user: int, minute: float) -> Iterable[ProcessReading]:
        yield of_job(user)
        facts = {"sm_pct": rng.uniform(10, 90), "memory_bytes": 8 * GIB}
        if not structured:
            facts = {"sm_pct": rng.uniform(0, 1), "memory_bytes": rng.randint(200, 700) << 20}
        yield of_job(user, (user + 1) % USERS, **facts)

    return share_accused(crowd(rules.EXTRA_GPUS, claims=booked()), 12, use)


def unclaimed(rng: Random, structured: bool) -> float:
    low, high = (30.0, 90.0) if structured else (0.0, 30.0)
    return share_accused(
        crowd(rules.UNCLAIMED),
        90,
        lambda user, m: [of(user, sm_pct=rng.uniform(low, high), memory_bytes=GIB // 2)],
    )


def cpu_hog(rng: Random, structured: bool) -> float:
    low, high = (0.55, 1.0) if structured else (0.0, 0.65)
    accused = 0
    policy = policies().hogs
    for user in range(USERS):
        windows, spent = CpuWindows(), 0.0
        for look in range(60):
            t = NOW.timestamp() + 30 * look
            mine = CpuProcess(
                pid=100 + user, start_ticks=1, cpu_s=spent, uid=1001, user="u", program="make"
            )
            windows.look(t, [mine], 8, ())
            spent += 30 * 8 * rng.uniform(low, high)
            if any(finding.opens for finding in cpu_rules.findings(windows, t, policy, ())):
                accused += 1
                break
    return accused / USERS


DETECTORS: dict[str, Callable[[Random, bool], float]] = {
    rules.SUSTAINED: sustained,
    "moving": moving,
    rules.FAIR_SHARE: fair_share,
    rules.MEMORY_HOG: memory_hog,
    rules.LEAK: leak,
    rules.IDLE_HELD: idle_held,
    rules.ORPHANED: orphaned,
    rules.CLAIMED_EMPTY: claimed_empty,
    rules.UNUSED_GPUS: unused_gpus,
    rules.OVER_MEMORY: over_memory,
    rules.EXTRA_GPUS: extra_gpus,
    rules.UNCLAIMED: unclaimed,
    rules.CPU_HOG: cpu_hog,
}


def test_every_rule_has_a_crowd() -> None:
    assert DETECTORS.keys() - {"moving"} == rules.TITLES.keys()


@pytest.mark.parametrize("detector", DETECTORS)
def test_users_without_structure_are_not_accused(detector: str) -> None:
    assert DETECTORS[detector](Random(f"null {detector}"), False) <= MOST_ACCUSED


@pytest.mark.parametrize("detector", DETECTORS)
def test_what_a_rule_is_for_is_found(detector: str) -> None:
    assert DETECTORS[detector](Random(f"recall {detector}"), True) >= LEAST_FOUND


NO_HABITS = {
    "10 h on, 14 h off": random_runs(10, 14),
    "30 h on, 30 h off": random_runs(30, 30),
    "48 h on, 24 h off": random_runs(48, 24),
    "6 h on, 18 h off": random_runs(6, 18),
    "50 % of the hours": random_hours(0.5),
    "60 % of the hours": random_hours(0.6),
}


@pytest.mark.parametrize("name", NO_HABITS)
def test_users_without_a_habit_have_no_pattern(name: str) -> None:
    users = {f"u{n}": NO_HABITS[name](Random(f"{name} {n}")) for n in range(USERS)}
    accused = {pattern.user for pattern in patterns_of(users)}
    assert len(accused) <= MOST_ACCUSED * USERS


EACH_DAY, WORKDAYS = (0, 1, 2, 3, 4, 5, 6), (0, 1, 2, 3, 4)
HABITS = {
    name: (days, start, length, facts)
    for name, days, start, length, facts in (
        ("each night", EACH_DAY, 20, 10, {"sure": 0.93}),
        ("each night, two weeks", EACH_DAY, 22, 8, {"last_days": 15}),
        ("lunch", EACH_DAY, 12, 3, {"beside": 0.1}),
        ("workdays", WORKDAYS, 9, 8, {"sure": 0.95, "beside": 0.05}),
        ("workday nights", WORKDAYS, 20, 10, {"sure": 0.95}),
        ("weekends", (5, 6), 8, 14, {}),
        ("Friday nights", (4,), 20, 10, {"sure": 0.97}),
        ("Monday, Wednesday, Friday nights", (0, 2, 4), 20, 10, {}),
        ("nights before workdays", (6, 0, 1, 2, 3), 21, 9, {}),
        ("near the threshold", EACH_DAY, 20, 10, {"low_pct": 55.0}),
        ("two GPUs in turn", EACH_DAY, 20, 10, {"gpus": 2}),
        ("two programs", EACH_DAY, 20, 10, {"programs": 2}),
        ("beside other use", EACH_DAY, 1, 5, {"beside": 0.2}),
    )
}


@pytest.mark.parametrize("name", HABITS)
def test_a_habit_is_found_as_one_pattern_with_its_hours_and_days(name: str) -> None:
    days, start, length, facts = HABITS[name]
    use = habit(days, start, length, **facts)  # type: ignore[arg-type]
    users = {f"u{n}": use(Random(f"{name} {n}")) for n in range(10)}
    found: dict[str, list[tuple[tuple[int, ...], int, int]]] = {}
    for pattern in patterns_of(users):
        found.setdefault(pattern.user, []).append((pattern.days, pattern.start, pattern.end))
    right = [(tuple(sorted(days)), start, (start + length) % 24)]
    assert sum(of_user == right for of_user in found.values()) >= LEAST_FOUND * len(users)
