"""Demand is the load of a machine with unlimited GPUs; what exceeds the supply is unmet."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reports.capacity.policy.demand import (
    DemandHour,
    daily_means,
    demand_hours,
    requested,
    unmet_gpu_hours,
)
from scheduler.facts.jobs import Requirement
from tests.builders import GIB
from tests.reports.capacity.recordings import recorded

BEGIN = datetime(2026, 3, 2, tzinfo=UTC)
DAY = timedelta(days=1)
T = int(BEGIN.timestamp())


def test_a_job_counts_from_its_submission_for_its_run_time() -> None:
    job = recorded(submitted_at=BEGIN + timedelta(minutes=30), run_time=timedelta(hours=1))
    hours = demand_hours([job], {}, BEGIN, BEGIN + DAY, None)
    assert [hour.demand for hour in hours[:3]] == pytest.approx([0.5, 0.5, 0])
    assert len(hours) == 24


def test_a_shared_job_counts_with_its_part_of_a_gpu() -> None:
    job = recorded(
        submitted_at=BEGIN, started_at=BEGIN, requirement=Requirement(memory_bytes=20 * GIB)
    )
    assert demand_hours([job], {}, BEGIN, BEGIN + DAY, 80 * GIB)[0].demand == pytest.approx(0.25)


def test_gpus_of_processes_outside_jobs_are_demand_too() -> None:
    assert demand_hours([], {T: 2.5}, BEGIN, BEGIN + DAY, None)[0].demand == 2.5


def test_waiting_gpus_are_counted_until_the_start() -> None:
    wait = timedelta(minutes=90)
    job = recorded(submitted_at=BEGIN, started_at=BEGIN + wait, requirement=Requirement(gpus=4))
    hours = demand_hours([job], {}, BEGIN, BEGIN + DAY, None)
    assert [hour.waiting for hour in hours[:3]] == pytest.approx([4, 2, 0])


def test_a_job_that_still_waits_counts_until_now() -> None:
    job = recorded(submitted_at=BEGIN, started_at=None)
    assert demand_hours([job], {}, BEGIN, BEGIN + DAY, None)[-1].waiting == pytest.approx(1)


@given(
    st.lists(
        st.tuples(st.floats(-30, 60), st.floats(0, 40), st.integers(1, 8)), min_size=1, max_size=20
    )
)
def test_demand_adds_up_to_the_work_inside_the_period(jobs: list[tuple[float, float, int]]) -> None:
    made = [
        recorded(
            submitted_at=BEGIN + timedelta(hours=at),
            run_time=timedelta(hours=long),
            requirement=Requirement(gpus=gpus),
        )
        for at, long, gpus in jobs
    ]
    hours = demand_hours(made, {}, BEGIN, BEGIN + DAY, None)
    inside = sum(gpus * max(0.0, min(24, at + long) - max(0.0, at)) for at, long, gpus in jobs)
    assert sum(hour.demand for hour in hours) == pytest.approx(inside, abs=1e-3)


def test_unmet_demand_is_what_exceeds_the_supply() -> None:
    hours = [DemandHour(t=T, demand=5, waiting=0), DemandHour(t=T + 3600, demand=3, waiting=0)]
    assert unmet_gpu_hours(hours, 4) == 1


def test_days_with_missing_hours_are_left_out() -> None:
    hours = [DemandHour(t=T + 3600 * h, demand=2, waiting=0) for h in range(47)]
    assert daily_means(hours) == [(T // 86_400, 2)]


def test_requested_memory_is_unknown_if_a_job_takes_a_gpu_of_unknown_size() -> None:
    assert requested([(Requirement(memory_bytes=GIB), 1), (Requirement(), 2)], None) == (3, None)
    assert requested([(Requirement(memory_bytes=GIB), 2)], 4 * GIB) == (0.5, 2 * GIB)
