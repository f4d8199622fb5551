from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.facts import units
from scheduler.facts.blockers import Tier
from scheduler.facts.jobs import Requirement
from scheduler.facts.people import Budget, Capacity, Quota, UserAccount
from scheduler.facts.plans import Throttle
from scheduler.limits.quotas.policy import quotas
from scheduler.limits.quotas.policy.quotas import QuotaPolicy
from scheduler.queue.wording import text
from tests.builders import GIB, gpu_uuid

HOUR = timedelta(hours=1)
BUDGET = Budget(
    limit=600,
    spent=500,
    committed=40,
    resets_at=datetime(2026, 3, 3, tzinfo=UTC),
    zone="Europe/Berlin",
)


def account_of(**changes: Any) -> UserAccount:
    """Alice on a machine of 8 GPUs with 80 GiB; quota's fields may be named among the changes."""
    names = set(Quota.__dataclass_fields__) - {"gpus", "jobs", "memory_bytes"}
    limits = {key: changes.pop(key) for key in names & set(changes)}
    limits |= {key[5:]: changes.pop(key) for key in list(changes) if key.startswith("most_")}
    uuids = tuple(gpu_uuid(i) for i in range(8))
    here = Capacity(gpu_uuids=uuids, gpu_bytes=80 * GIB)
    return UserAccount(owner="alice", quota=Quota(**limits), capacity=here, **changes)


def refused(
    account: UserAccount,
    requirement: Requirement | None = None,
    lasts: timedelta | None = HOUR,
    priority: int = 3,
    multipliers: dict[str, float] | None = None,
) -> list[str]:
    refusals = quotas.refusals(
        requirement or Requirement(),
        priority,
        lasts,
        account,
        Throttle(multipliers=multipliers or {}),
        policy=QuotaPolicy(),
    )
    assert all(blocker.tier in (Tier.MY_LIMITS, Tier.PERSON) for blocker in refusals)
    return [blocker.code for blocker in refusals]


def test_who_has_no_limits_is_never_kept_from_starting() -> None:
    assert refused(account_of(gpus=8, jobs=900), Requirement(gpus=8)) == []


def test_gpus_at_a_time_are_counted_with_those_asked_for() -> None:
    account = account_of(most_gpus=4)

    assert refused(replace(account, gpus=2), Requirement(gpus=2)) == []
    assert refused(replace(account, gpus=3), Requirement(gpus=2)) == ["UserMaxGpus"]


def test_a_job_without_a_gpu_is_bound_by_the_number_of_jobs_alone() -> None:
    account = account_of(most_gpus=0, most_memory_bytes=0, most_jobs=2, budget=BUDGET, jobs=1)

    assert refused(account, Requirement(gpus=0), None) == []
    assert refused(replace(account, jobs=2), Requirement(gpus=0)) == ["UserMaxJobs"]


def test_what_a_limit_can_never_allow_needs_a_person() -> None:
    account = account_of(most_gpus=2, most_memory_bytes=60 * GIB, gpus=2)

    def texts(gpus: int) -> list[tuple[str, Tier]]:
        request = Requirement(gpus=gpus, memory_bytes=20 * GIB)
        return [
            (blocker.code, blocker.tier)
            for blocker in quotas.refusals(
                request, 3, HOUR, account, Throttle(), policy=QuotaPolicy()
            )
        ]

    assert texts(1) == [("UserMaxGpus", Tier.MY_LIMITS)]
    assert texts(4) == [("UserMaxGpus", Tier.PERSON), ("UserMaxMemory", Tier.PERSON)]


def test_a_limit_says_how_much_of_it_is_left() -> None:
    account = account_of(most_gpus=4, most_memory_bytes=60 * GIB, gpus=3, memory_bytes=45 * GIB)
    request = Requirement(gpus=2, memory_bytes=10 * GIB)

    blockers = quotas.refusals(request, 3, HOUR, account, Throttle(), policy=QuotaPolicy())

    assert [blocker.available for blocker in blockers] == ["1 of 4", "15 GiB free"]


def test_who_declares_no_memory_holds_the_whole_gpu() -> None:
    account = account_of(most_memory_bytes=60 * GIB)

    assert refused(account, Requirement(memory_bytes=20 * GIB)) == []
    assert refused(account, Requirement()) == ["UserMaxMemory"]
    assert refused(account, Requirement(memory_bytes=20 * GIB, exclusive=True)) == ["UserMaxMemory"]
    assert refused(account, Requirement(gpus=4, memory_bytes=20 * GIB)) == ["UserMaxMemory"]


def test_a_job_starts_only_if_the_budget_lasts_to_its_end() -> None:
    account = account_of(budget=BUDGET)

    assert refused(account, lasts=HOUR) == []
    assert refused(account, lasts=HOUR + timedelta(minutes=1)) == ["BudgetDay"]
    assert refused(account, Requirement(gpus=2), lasts=HOUR) == ["BudgetDay"]


def test_a_shared_job_costs_the_part_of_the_gpu_that_it_declared() -> None:
    account = account_of(budget=BUDGET)

    assert refused(account, Requirement(memory_bytes=20 * GIB), 4 * HOUR) == []
    assert refused(account, Requirement(memory_bytes=20 * GIB), 5 * HOUR) == ["BudgetDay"]


def test_a_job_that_may_take_for_ever_counts_as_all_that_is_left() -> None:
    account = account_of(budget=BUDGET)

    assert refused(account, lasts=None) == []
    then = quotas.after(account, Requirement(), None)
    assert refused(then, lasts=None) == ["BudgetDay"]
    assert refused(then, lasts=timedelta(minutes=1)) == ["BudgetDay"]


def test_a_budget_that_others_processes_overdrew_lets_nothing_start() -> None:
    account = account_of(budget=replace(BUDGET, spent=700))

    assert refused(account, lasts=timedelta(seconds=1)) == ["BudgetDay"]
    assert refused(account, lasts=None) == ["BudgetDay"]


def test_the_reason_names_the_instant_of_the_reset_with_its_zone() -> None:
    (blocker,) = quotas.refusals(
        Requirement(),
        3,
        2 * HOUR,
        account_of(budget=BUDGET),
        Throttle(),
        policy=QuotaPolicy(),
    )

    assert "Tue 03 Mar 00:00 (Europe/Berlin)" in text(blocker)
    assert blocker.until == BUDGET.resets_at
    assert blocker.requested == "120 GPU-minutes"


def test_a_budget_with_a_rest_is_never_shown_as_used_up() -> None:
    budget = replace(BUDGET, limit=1, spent=0.65, committed=0.05)
    (blocker,) = quotas.refusals(
        Requirement(),
        3,
        timedelta(seconds=40),
        account_of(budget=budget),
        Throttle(),
        policy=QuotaPolicy(),
    )

    assert "0.3 of 1 GPU-minutes left today, and this job may take 0.67." in text(blocker)


@given(st.floats(0.001, 1e6), st.floats(0.001, 1e6))
def test_what_is_left_is_rounded_down_and_what_is_taken_up(left: float, taken: float) -> None:
    assert 0 < units.minutes_left(left) <= left + 1e-4 * left
    assert units.minutes_taken(taken) >= taken - 1e-4 * taken
    if taken > left * 1.001:
        assert units.minutes_taken(taken) > units.minutes_left(left)


def test_a_budget_that_is_used_up_minute_by_minute_is_not_a_new_reason_each_time() -> None:
    def key(spent: float) -> object:
        account = account_of(budget=replace(BUDGET, spent=spent))
        refusals = quotas.refusals(
            Requirement(), 3, 9 * HOUR, account, Throttle(), policy=QuotaPolicy()
        )
        return refusals[0].dimensions

    assert len({key(400 + minute / 2) for minute in range(60)}) == 1


def test_a_share_alone_keeps_nobody_from_starting() -> None:
    assert refused(account_of(share_pct=10, gpus=7, charge=7.0)) == []


def test_a_share_marked_as_a_limit_binds_at_any_time() -> None:
    account = account_of(share_pct=50, share_is_limit=True, gpus=3, charge=3.0)

    assert refused(account, priority=4) == []
    assert refused(account, Requirement(gpus=2), priority=4) == ["UserMaxShare"]


def test_who_has_nothing_may_start_one_job_beyond_the_limit() -> None:
    account = account_of(gpus=0, share_pct=1, share_is_limit=True)

    assert refused(account) == []
    assert refused(replace(account, gpus=1, charge=1.0)) == ["UserMaxShare"]


def test_a_part_of_a_limited_share_is_kept_for_user_initiated_jobs() -> None:
    account = account_of(share_pct=50, share_is_limit=True, gpus=3, charge=3.0)

    assert refused(account, priority=3) == ["UserMaxShare"]
    assert refused(account, priority=1) == ["UserMaxShare"]
    assert refused(account, priority=4) == []


def test_gpus_that_are_not_shared_out_here_do_not_count_for_a_limit() -> None:
    account = account_of(share_pct=50, share_is_limit=True, gpus=2, charge=2.0)

    assert refused(account, multipliers={"GPU-elsewhere": 0.0}) == []
    assert refused(account, multipliers={gpu_uuid(0): 0.0}) == ["UserMaxShare"]


def test_demand_ends_at_the_limits_of_the_quota() -> None:
    has = account_of(most_gpus=4, gpus=1, charge=1.0)

    assert quotas.demand(has, 2.0) == 3.0
    assert quotas.demand(has, 9.0) == 4.0
    assert quotas.demand(replace(has, gpus=4, charge=4.0), 9.0) == 4.0
    assert quotas.demand(account_of(budget=replace(BUDGET, spent=600), charge=1.0), 9.0) == 1.0
    assert quotas.demand(account_of(share_pct=50, share_is_limit=True, charge=1.0), 9.0) == 4.0


def test_what_a_pass_has_placed_counts_for_the_next_job() -> None:
    account = account_of(most_gpus=2, budget=replace(BUDGET, spent=0))
    then = quotas.after(account, Requirement(gpus=2), HOUR)

    assert (then.gpus, then.jobs, then.charge) == (2, 1, 2.0)
    assert then.memory_bytes == 160 * GIB
    assert then.budget == replace(BUDGET, spent=0, committed=160)
    assert refused(then) == ["UserMaxGpus"]


@settings(max_examples=50, deadline=None)
@given(
    st.integers(0, 9),
    st.integers(0, 9),
    st.floats(0, 700),
    st.booleans(),
    st.integers(1, 5),
    st.one_of(st.none(), st.integers(1, 200)),
)
def test_a_person_who_holds_less_is_never_kept_back_for_more(
    gpus: int, wants: int, spent: float, is_limit: bool, priority: int, gib: int | None
) -> None:
    account = account_of(
        most_gpus=6,
        most_memory_bytes=400 * GIB,
        share_pct=60,
        share_is_limit=is_limit,
        gpus=gpus,
        charge=float(gpus),
        budget=replace(BUDGET, spent=spent),
    )
    less = replace(
        account,
        gpus=max(0, gpus - 1),
        charge=max(0.0, gpus - 1.0),
        budget=replace(BUDGET, spent=spent / 2),
    )
    job = Requirement(gpus=wants, memory_bytes=None if gib is None else gib * GIB)

    before = refused(account, job, priority=priority)
    assert set(refused(less, job, priority=priority)) <= set(before)
