"""A job for any host: the one with the earliest forecast keeps GPUs and preempts for it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

import pytest
from django.contrib.auth.models import User
from django.db import transaction

from monitor.facts.hosts import HostState
from monitor.gpus.hosts import rows as hosts
from monitor.gpus.snapshot import rows as snapshots
from monitor.runtime.rows.item_isolation import ItemIsolation
from scheduler.dispatch.inputs import HostGate
from scheduler.dispatch.steps.dispatcher import CHOSEN_FOR, Dispatcher, HostChoice, earliest
from scheduler.facts.jobs import NewJob, QueuedJob, Requirement, YieldOptions
from scheduler.facts.plans import Plan, PlanPolicy, Yield
from scheduler.jobs.lifecycle.rows import queue as job_queue
from scheduler.models import Job, YieldRequest
from scheduler.queue.planner.forecast.forecast import Estimate
from tests.builders import NOW, gpu, host, queued_job, snapshot

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("data")]
HOUR = timedelta(hours=1)
SECOND = timedelta(seconds=1)


def see(at: datetime) -> None:
    """Two hosts with one GPU each."""
    for index, name in enumerate(("east", "west")):
        snapshots.record(snapshot([gpu(index)], host=host(name=name), at=at))


def submit(owner: User, at: datetime, **changes: object) -> Job:
    job = NewJob(command="true", requirement=Requirement(exclusive=True), **changes)  # type: ignore[arg-type]
    return job_queue.submit(job, owner, at)


def dispatcher(name: str) -> Dispatcher:
    return Dispatcher(transaction.atomic, name, PlanPolicy(cpu_jobs=1))


def estimate(hours: float | None) -> Estimate:
    start = None if hours is None else NOW + hours * HOUR
    return Estimate(position=1, p50=start, p90=start)


def choice_of(starts: Mapping[str, float | None], on: str = "east") -> HostChoice:
    """With these forecasts of job 1, in hours."""

    def forecast(name: str, _now: datetime) -> dict[int, Estimate]:
        return {1: estimate(starts[name])}

    return HostChoice(on, HostGate(on), forecast, ItemIsolation(on, "dispatcher"))


def queue(at: datetime, **changes: object) -> list[QueuedJob]:
    return [queued_job(1, submitted_at=at, **changes)]


def test_the_earliest_known_start_is_chosen() -> None:
    assert earliest({"east": NOW + HOUR, "west": NOW}) == "west"
    assert earliest({"east": NOW + HOUR, "west": None}) == "east"
    assert earliest({"east": None, "west": None}) is None


@pytest.mark.parametrize(
    ("starts", "left"),
    [
        ({"east": 2, "west": 1}, {1}),
        ({"east": 1, "west": 2}, set()),
        ({"east": None, "west": 2}, {1}),
        ({"east": None, "west": None}, set()),
    ],
)
def test_a_host_keeps_no_gpus_for_a_job_that_another_host_starts_earlier(
    starts: Mapping[str, float | None], left: set[int]
) -> None:
    see(NOW)
    choice = choice_of(starts)

    choice.applied(Plan(reserved_for=1), queue(NOW - HOUR), NOW)

    assert choice.left_to_others(NOW) == left
    # Chosen again, as forecasts change.
    assert choice.left_to_others(NOW + CHOSEN_FOR) == set()


def test_a_job_for_one_host_is_left_to_no_other() -> None:
    see(NOW)
    choice = choice_of({"east": 2, "west": 1})

    choice.applied(Plan(reserved_for=1), queue(NOW - HOUR, host="east"), NOW)

    assert choice.left_to_others(NOW) == set()


@pytest.mark.parametrize("is_silent", [True, False])
def test_a_host_that_takes_no_jobs_is_not_chosen(is_silent: bool) -> None:
    see(NOW)
    at = NOW + is_silent * 60 * SECOND
    snapshots.record(snapshot([gpu(0)], host=host(name="east"), at=at))
    if not is_silent:
        hosts.set_state("west", HostState.DRAINED, "olga", "", NOW)
    choice = choice_of({"east": 2, "west": 1})

    choice.applied(Plan(reserved_for=1), queue(NOW - HOUR), at)

    assert choice.left_to_others(at) == set()


def test_a_new_job_preempts_only_once_every_host_has_planned_it() -> None:
    see(NOW)
    asks = Plan(preemptions=(Yield(job_id=9, code="Preempted", text="", for_job=1),))
    choice = choice_of({"east": 1, "west": 2})

    assert choice.applied(asks, queue(NOW - SECOND), NOW).preemptions == ()
    assert choice.applied(asks, queue(NOW - HOUR), NOW) == asks


def test_two_hosts_preempt_one_job_for_a_job_of_any_host(alice: User) -> None:
    see(NOW)
    planners = [dispatcher("east"), dispatcher("west")]
    for name, planner in zip(("east", "west"), planners, strict=True):
        options = YieldOptions(preemptible=True)
        submit(alice, NOW, host=name, priority=1, yield_options=options)
        assert len(planner.step(NOW)) == 1
    urgent = submit(alice, NOW + HOUR, priority=5)
    for second in range(0, 12, 2):
        see(NOW + HOUR + second * SECOND)
        for planner in planners:
            planner.step(NOW + HOUR + second * SECOND)

    requests = YieldRequest.objects.filter(for_job=urgent)
    assert requests.count() == 1
