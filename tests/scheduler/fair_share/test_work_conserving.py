"""A share is a weight: the real planner, run in made-up time, beside a reference of its own."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.facts.jobs import QueuedJob, Requirement
from scheduler.facts.people import Capacity, Quota, UserAccount
from scheduler.facts.plans import Plan, PlanPolicy, RunningJob, Slots
from scheduler.limits.quotas.policy import charging, quotas
from scheduler.queue.planner.matching import reject_code
from scheduler.queue.planner.placement import after_placement
from scheduler.queue.planner.plan import plan
from tests.builders import GIB, NOW, gpu_uuid, slot

LEDGER_S = 5
SECOND = timedelta(seconds=1)


def max_min_by_steps(
    weights: Mapping[str, float], demands: Mapping[str, float]
) -> dict[str, float]:
    """The reference: raise all dominant shares together until each user is satisfied."""
    level, left = {name: Fraction(0) for name in weights}, Fraction(1)
    hungry = {name for name in weights if demands[name] > 0}
    while hungry and left > 0:
        total = sum(Fraction(weights[name]) for name in hungry)
        raises = [
            (Fraction(demands[name]) - level[name]) / Fraction(weights[name]) for name in hungry
        ]
        step = min([left / total, *raises])
        for name in hungry:
            level[name] += step * Fraction(weights[name])
        left -= step * total
        hungry = {name for name in hungry if level[name] < Fraction(demands[name])}
    return {name: float(part) for name, part in level.items()}


@dataclass
class Lab:
    """Users with jobs of one GPU each, unless `sizes` says otherwise.

    shares: in percent. seconds: a job's run time. limited: users whose share is a limit.
    used, deserved: GPU-seconds, and those by the reference: a fluid that divides GPUs at will.
    """

    gpus: int
    shares: Mapping[str, float | None]
    seconds: tuple[int, int] = (3, 3)
    sizes: tuple[int, ...] = (1,)
    priorities: tuple[int, ...] = (3,)
    most_gpus: Mapping[str, int] = field(default_factory=dict)
    limited: frozenset[str] = frozenset()
    seed: int = 1
    second: int = 0
    starts: int = 0
    idle_s: float = 0.0

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._number, self._planned = 0, -1
        self.queue: list[QueuedJob] = []
        self.running: dict[int, tuple[RunningJob, int]] = {}
        self._lengths: dict[int, int] = {}
        # Work that the reference has not done yet.
        self._undone = dict.fromkeys(self.shares, 0.0)
        self.used = dict.fromkeys(self.shares, 0.0)
        self.deserved = dict.fromkeys(self.shares, 0.0)
        self.owed_s: dict[str, float] = {}
        self._held_s = dict.fromkeys(self.shares, 0.0)

    def submit(self, owner: str, count: int) -> None:
        for _ in range(count):
            self._number += 1
            length = self._lengths[self._number] = self._random.randint(*self.seconds)
            self._undone[owner] += length
            self.queue.append(
                QueuedJob(
                    id=self._number,
                    owner=owner,
                    priority=self._random.choice(self.priorities),
                    submitted_at=NOW + self.second * SECOND,
                    requirement=Requirement(gpus=self._random.choice(self.sizes), exclusive=True),
                )
            )

    def run(self, seconds: int) -> None:
        for _ in range(seconds):
            self.tick()

    def run_until(self, starts: int, waiting: int = 15) -> None:
        """With so many jobs waiting of each user."""
        while self.starts < starts:
            if self._is_changed():
                for name in self.shares:
                    self.submit(name, waiting - self.waits(name))
            self.tick()

    def tick(self) -> Plan | None:
        """One second: ends, the ledger, a plan if anything changed, and the use until the next."""
        if self.second % LEDGER_S == 0:
            self._write_ledger()
        made = self._serve() if self._is_changed() else None
        self._count()
        self.second += 1
        return made

    def _is_changed(self) -> bool:
        ends = any(end <= self.second for _, end in self.running.values())
        return ends or self._planned != self._number

    def _serve(self) -> Plan:
        self._planned = self._number
        self.running = {n: (j, end) for n, (j, end) in self.running.items() if end > self.second}
        made = plan(self.queue, self.slots(), PlanPolicy(), NOW + self.second * SECOND)
        placed = {p.job_id: p.gpu_uuids for p in made.placements}
        for job in [job for job in self.queue if job.id in placed]:
            began = RunningJob(
                id=job.id, owner=job.owner, priority=job.priority, requirement=job.requirement,
                gpu_uuids=placed[job.id], started_at=NOW + self.second * SECOND,
            )  # fmt: skip
            self.running[job.id] = (began, self.second + self._lengths[job.id])
            self.starts += 1
        self.queue = [job for job in self.queue if job.id not in placed]
        return made

    def held(self, owner: str) -> int:
        return sum(len(job.gpu_uuids) for job, _ in self.running.values() if job.owner == owner)

    def waits(self, owner: str) -> int:
        return sum(job.requirement.gpus for job in self.queue if job.owner == owner)

    def _count(self) -> None:
        free = self.gpus - sum(map(self.held, self.shares))
        if self.queue:
            self.idle_s += free
        self._divide()
        for name in self.shares:
            self.used[name] += self.held(name)
            self._held_s[name] += self.held(name)

    def _divide(self) -> None:
        """The reference: each user's undone jobs, at most one GPU each."""
        mean = sum(self.seconds) / 2
        jobs = {name: math.ceil(work / mean) for name, work in self._undone.items() if work > 1e-9}
        weights = charging.weights({name: self.shares[name] for name in jobs})
        demands = {
            name: min(self._undone[name], count, self.most_gpus.get(name, count)) / self.gpus
            for name, count in jobs.items()
        }
        for name, part in max_min_by_steps(weights, demands).items():
            self.deserved[name] += part * self.gpus
            self._undone[name] -= part * self.gpus

    def _write_ledger(self) -> None:
        accounts = self.accounts()
        since = NOW + (self.second - LEDGER_S) * SECOND
        waited = [job.owner for job in self.queue if job.submitted_at <= since]
        owed_s = charging.owed_seconds(
            self.owed_s,
            {name: account.target for name, account in accounts.items()},
            {name: quotas.demand(a, float(waited.count(name))) for name, a in accounts.items()},
            sum(account.charge for account in accounts.values()),
            self._held_s,
        )
        self.owed_s = owed_s if waited else {}
        self._held_s = dict.fromkeys(self.shares, 0.0)

    def accounts(self) -> dict[str, UserAccount]:
        here = Capacity(gpu_uuids=tuple(map(gpu_uuid, range(self.gpus))), gpu_bytes=80 * GIB)
        names = [name for name in self.shares if self.held(name) or self.waits(name)]
        accounts = {
            name: UserAccount(
                owner=name,
                quota=Quota(
                    share_pct=self.shares[name],
                    gpus=self.most_gpus.get(name),
                    share_is_limit=name in self.limited,
                ),
                gpus=self.held(name),
                charge=float(self.held(name)),
                jobs=sum(job.owner == name for job, _ in self.running.values()),
                capacity=here,
                owed=charging.owed_gpus(self.owed_s.get(name, 0.0)),
            )
            for name in names
        }
        weights = charging.weights({name: self.shares[name] for name in names})
        demands = {
            name: quotas.demand(account, float(self.waits(name))) / self.gpus
            for name, account in accounts.items()
        }
        targets = charging.targets(weights, {}, 1.0, demands)
        return {name: replace(a, target=targets[name]) for name, a in accounts.items()}

    def slots(self) -> Slots:
        gpus = {gpu_uuid(i): slot(i) for i in range(self.gpus)}
        for job, _ in self.running.values():
            for uuid in job.gpu_uuids:
                gpus[uuid] = after_placement(gpus[uuid], job.id, job.requirement)
        return Slots(
            host="gpubox",
            gpus=tuple(gpus.values()),
            running=tuple(job for job, _ in self.running.values()),
            people=self.accounts(),
        )

    def off_by(self) -> dict[str, float]:
        """Points of all GPU time by which each user's part differs from the reference."""
        used, deserved = sum(self.used.values()), sum(self.deserved.values())
        return {
            name: 100 * (self.used[name] / used - self.deserved[name] / deserved)
            for name in self.shares
        }


THREE = {"lab1": 50.0, "lab2": 100 / 3, "lab3": 50 / 3}


def test_three_users_with_fractional_shares_use_all_gpus_by_their_shares() -> None:
    lab = Lab(8, THREE)
    lab.run_until(200)

    assert lab.idle_s == 0
    assert max(map(abs, lab.off_by().values())) < 2
    assert {n: 100 * s / sum(lab.used.values()) for n, s in lab.used.items()} == pytest.approx(
        {"lab1": 50, "lab2": 100 / 3, "lab3": 50 / 3}, abs=2
    )


def test_the_gpus_of_a_user_without_jobs_go_to_the_others_by_weight() -> None:
    lab = Lab(8, THREE)
    lab.submit("lab2", 200)
    lab.submit("lab3", 200)

    lab.run(75)

    assert lab.idle_s == 0
    assert lab.used["lab2"] / sum(lab.used.values()) == pytest.approx(2 / 3, abs=0.02)


def test_what_a_limited_user_cannot_use_goes_to_the_others_by_weight() -> None:
    lab = Lab(8, THREE, most_gpus={"lab1": 1})
    for name in THREE:
        lab.submit(name, 300)

    lab.run(100)

    assert lab.idle_s == 0
    assert lab.used["lab1"] == 100
    assert lab.used["lab2"] / (lab.used["lab2"] + lab.used["lab3"]) == pytest.approx(
        2 / 3, abs=0.02
    )


def test_a_share_marked_as_a_limit_leaves_gpus_idle() -> None:
    lab = Lab(8, {"lab1": 50.0}, priorities=(4,), limited=frozenset({"lab1"}))
    lab.submit("lab1", 20)

    made = lab.tick()

    assert made is not None
    assert lab.held("lab1") == 4
    assert {reason.code for why in made.blockers.values() for reason in why} == {"UserMaxShare"}


def test_jobs_of_high_priority_do_not_pass_a_user_below_the_share() -> None:
    lab = Lab(8, {"lab1": 50.0, "lab2": 50.0}, priorities=(5,))
    lab.submit("lab1", 200)
    lab.priorities = (1,)
    lab.submit("lab2", 200)

    lab.run(60)

    assert lab.idle_s == 0
    assert max(map(abs, lab.off_by().values())) < 2


def test_a_user_above_the_share_takes_a_gpu_that_the_others_cannot_use() -> None:
    lab = Lab(8, {"lab1": 50.0, "lab2": 50.0}, most_gpus={"lab2": 2})
    lab.submit("lab2", 9)
    lab.submit("lab1", 9)

    lab.tick()

    assert (lab.held("lab1"), lab.held("lab2")) == (6, 2)


SHARES = st.dictionaries(
    st.sampled_from(["ann", "bob", "cyd", "dan", "eve"]),
    st.one_of(st.none(), st.floats(5, 60)),
    min_size=2,
)


@settings(max_examples=5, deadline=None, derandomize=True)
@given(
    SHARES,
    st.integers(1, 10),
    st.sampled_from([(3, 3), (2, 9), (20, 60)]),
    st.sampled_from([(3,), (2, 3, 4)]),
    st.integers(0, 10**6),
)
def test_each_user_gets_the_weighted_share_and_no_gpu_is_idle(
    shares: dict[str, float | None],
    gpus: int,
    seconds: tuple[int, int],
    priorities: tuple[int, ...],
    seed: int,
) -> None:
    lab = Lab(gpus, shares, seconds, seed=seed)
    lab.run_until(200)

    assert lab.idle_s == 0
    assert max(map(abs, lab.off_by().values())) < 2, lab.off_by()


@settings(max_examples=5, deadline=None, derandomize=True)
@given(SHARES, st.integers(2, 10), st.integers(0, 10**6))
def test_users_who_come_and_go_get_their_shares(
    shares: dict[str, float | None], gpus: int, seed: int
) -> None:
    lab, chance = Lab(gpus, shares, (2, 9), seed=seed), random.Random(seed)
    while lab.starts < 200:
        if lab.second % 20 == 0:
            for name in shares:
                if chance.random() < 0.4:
                    lab.submit(name, chance.randint(1, 40))
        lab.tick()

    assert lab.idle_s == 0
    assert max(map(abs, lab.off_by().values())) < 2, lab.off_by()


@settings(max_examples=10, deadline=None)
@given(
    SHARES, st.integers(1, 10), st.sampled_from([(1,), (1, 2, 4), (1, 8)]), st.integers(0, 10**6)
)
def test_no_gpu_is_idle_that_a_waiting_job_could_take(
    shares: dict[str, float | None], gpus: int, sizes: tuple[int, ...], seed: int
) -> None:
    lab = Lab(gpus, shares, (2, 9), sizes, (1, 2, 3, 4, 5), seed=seed)
    for name in shares:
        lab.submit(name, 30)

    for _ in range(60):
        made = lab.tick()
        if made is not None and made.reserved_for is None:
            gpus_now = lab.slots().gpus
            for job in lab.queue:
                able = [
                    g for g in gpus_now if reject_code(job.requirement, g, PlanPolicy()) is None
                ]
                assert len(able) < job.requirement.gpus


@given(
    st.dictionaries(st.sampled_from("abcd"), st.floats(-100, 100)),
    st.dictionaries(st.sampled_from("abcd"), st.floats(0.01, 1), min_size=1),
    st.lists(st.floats(0, 9), min_size=4, max_size=4),
    st.lists(st.floats(0, 50), min_size=4, max_size=4),
)
def test_what_is_owed_is_divided_among_the_users_with_demand_and_adds_up_to_nothing(
    before: dict[str, float], shares: dict[str, float], each: list[float], held: list[float]
) -> None:
    demands = {name: part for name, part in zip("abcd", each, strict=True) if name in shares}
    held_s = dict(zip("abcd", held, strict=True))

    owed = charging.owed_seconds(before, shares, demands, 8.0, held_s)

    assert owed.keys() == (shares.keys() if any(demands.values()) else set())
    assert sum(owed.values()) == pytest.approx(0, abs=1e-6)


def test_what_a_user_who_leaves_was_owed_is_divided_by_share() -> None:
    owed = charging.owed_seconds(
        {"gone": 6.0, "a": -1.0, "b": -5.0}, {"a": 0.5, "b": 0.25}, {"a": 4.0, "b": 2.0}, 6.0,
        {"a": 20.0, "b": 10.0},
    )  # fmt: skip

    assert owed == pytest.approx({"a": 3.0, "b": -3.0})


# Targets come from differences, which leave weights that are nearly nothing.
WEIGHTS = st.one_of(st.floats(0.01, 1), st.sampled_from([1e-18, 1e-12]))


@settings(max_examples=200, deadline=None)
@given(
    st.dictionaries(st.sampled_from("abcdef"), WEIGHTS, min_size=1),
    st.lists(st.floats(0, 1.5), min_size=6, max_size=6),
)
def test_the_closed_form_is_the_reference(weights: dict[str, float], each: list[float]) -> None:
    demands = dict(zip("abcdef", each, strict=True))
    parts = charging.max_min(weights, demands)

    assert parts == pytest.approx(max_min_by_steps(weights, demands), abs=1e-9)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.sampled_from([0.0, 5e-324, 1e-300, 0.3, 1.0]), min_size=1, max_size=6))
def test_the_smallest_weights_divide_the_machine_too(weights: list[float]) -> None:
    parts = charging.max_min({str(i): weight for i, weight in enumerate(weights)}, {})

    assert sum(parts.values()) == pytest.approx(1)
    assert min(parts.values()) >= 0
