"""A job for any host: the offers of the hosts decide where it starts, and who keeps GPUs for it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

import pytest
from django.contrib.auth.models import User
from django.db import transaction

from monitor.facts.readings import HostState
from monitor.gpus.rows import hosts
from monitor.gpus.rows import snapshot as snapshots
from monitor.runtime.rows.item_isolation import ItemIsolation
from scheduler.dispatch.inputs import HostGate, PlanInput
from scheduler.dispatch.steps.dispatcher import (
    FRESH_FOR,
    HEARD_WITHIN,
    LEFT_FOR,
    NOW_S,
    Dispatcher,
    HostChoice,
    Offer,
)
from scheduler.facts.jobs import NewJob, Requirement, YieldOptions
from scheduler.facts.plans import Placement, Plan, PlanPolicy, Slots, Yield
from scheduler.jobs.rows import changes as job_queue
from scheduler.models import HostForecast, Job, YieldRequest
from scheduler.queue.planner.forecasts import Estimate
from scheduler.queue.planner.gates import PlannerThresholds
from tests.builders import NOW, gpu, gpu_uuid, host, queued_job, slot, snapshot

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("data")]
HOUR = timedelta(hours=1)
SECOND = timedelta(seconds=1)
H100, T4 = "NVIDIA H100 80GB HBM3", "Tesla T4"


def see(at: datetime, west: str = H100) -> None:
    """Two hosts with one GPU each, the one of east an H100."""
    for index, (name, model) in enumerate((("east", H100), ("west", west))):
        snapshots.record(snapshot([gpu(index, name=model)], host=host(name=name), at=at))


def submit(owner: User, at: datetime, **changes: object) -> Job:
    job = NewJob(command="true", requirement=Requirement(exclusive=True), **changes)  # type: ignore[arg-type]
    return job_queue.submit(job, owner, at)


def dispatcher(name: str) -> Dispatcher:
    return Dispatcher(transaction.atomic, name, PlanPolicy(cpu_jobs=1))


def choice_of(hours: float | None = None) -> HostChoice:
    """Of the host east, which expects to start job 1 then."""
    start = None if hours is None else NOW + hours * HOUR
    estimates = {1: Estimate(position=1, p50=start, p90=start)}
    isolation = ItemIsolation("east", "dispatcher")
    return HostChoice("east", transaction.atomic, HostGate("east"), lambda *_: estimates, isolation)


def publish(at: datetime, **offers: list[float | None]) -> None:
    """The offers of the host west, such as `job1=[start, weakness, crowd]`."""
    listed = {name.removeprefix("job"): offer for name, offer in offers.items()}
    HostForecast.objects.update_or_create(pk="west", defaults={"at": at, "offers": listed})


def in_hours(hours: float | None) -> float | None:
    return None if hours is None else (NOW + hours * HOUR).timestamp()


def given(at: datetime = NOW - HOUR, **changes: object) -> PlanInput:
    queue = [queued_job(1, submitted_at=at, **changes)]
    slots = Slots(host="east", gpus=(slot(0, host="east", power=2000.0),))
    return PlanInput(queue, slots, PlanPolicy(), PlannerThresholds())


RESERVES = Plan(reserved_for=1)
STARTS = Plan(placements=(Placement(job_id=1, host="east", gpu_uuids=(gpu_uuid(0),)),))


def test_the_best_offer_starts_first_then_has_the_better_gpu_then_fewer_jobs_there() -> None:
    later, strong = Offer(60.0, -2000.0, 0, "a"), Offer(NOW_S, -2000.0, 3, "b")
    weak, empty = Offer(NOW_S, -65.0, 0, "a"), Offer(NOW_S, -2000.0, 0, "c")

    assert sorted([later, weak, strong, empty]) == [empty, strong, weak, later]


@pytest.mark.parametrize(
    ("east", "west", "left"),
    [(2, 1, {1}), (1, 2, set()), (None, 2, {1}), (None, None, set())],
)
def test_a_host_keeps_no_gpus_for_a_job_that_another_host_starts_earlier(
    east: float | None, west: float | None, left: set[int]
) -> None:
    see(NOW)
    publish(NOW, job1=[in_hours(west), 0, 0])
    choice = choice_of(east)

    choice.applied(RESERVES, given(), NOW)

    assert choice.left_to_others == left


def test_a_host_that_does_not_plan_any_more_is_left_no_job() -> None:
    see(NOW)
    publish(NOW - FRESH_FOR, job1=[in_hours(1), 0, 0])
    choice = choice_of(2)

    choice.applied(RESERVES, given(), NOW)

    assert choice.left_to_others == set()


def test_a_job_for_one_host_is_left_to_no_other() -> None:
    see(NOW)
    publish(NOW, job1=[NOW_S, -1, 0])
    choice = choice_of(2)

    assert choice.applied(STARTS, given(host="east"), NOW) == STARTS
    assert choice.left_to_others == set()


@pytest.mark.parametrize("offers", [{"job": [0, 0, 0]}, {"1": 5}, [1], {"1": ["soon", 0, 0]}])
def test_offers_without_sense_stop_no_job(offers: object) -> None:
    see(NOW)
    HostForecast.objects.create(pk="west", at=NOW, offers=offers)
    choice, submitted = choice_of(), NOW - LEFT_FOR

    choice.applied(STARTS, given(submitted), NOW)

    assert choice.applied(STARTS, given(submitted), NOW + LEFT_FOR) == STARTS


@pytest.mark.parametrize("is_silent", [True, False])
def test_a_host_that_takes_no_jobs_is_not_chosen(is_silent: bool) -> None:
    see(NOW)
    at = NOW + is_silent * 60 * SECOND
    snapshots.record(snapshot([gpu(0)], host=host(name="east"), at=at))
    if not is_silent:
        hosts.change("west", HostState.DRAINED, "olga", "", NOW)
    publish(at, job1=[in_hours(1), 0, 0])
    choice = choice_of(2)

    choice.applied(RESERVES, given(), at)

    assert choice.left_to_others == set()


def test_a_job_that_could_start_here_is_left_to_a_host_with_a_better_gpu_for_a_short_time() -> None:
    see(NOW)
    choice, urgent = choice_of(), given(priority=5)
    publish(NOW, job1=[NOW_S, -4500.0, 0])

    assert choice.applied(STARTS, urgent, NOW).placements == ()
    assert choice.asks_again
    # It may have failed there.
    publish(NOW + LEFT_FOR, job1=[NOW_S, -4500.0, 0])
    assert choice.applied(STARTS, urgent, NOW + LEFT_FOR) == STARTS


def test_a_job_starts_once_the_other_hosts_have_planned_and_have_nothing_better() -> None:
    see(NOW)
    publish(NOW - SECOND)
    choice = choice_of()

    assert choice.applied(STARTS, given(), NOW).placements == ()
    publish(NOW)
    assert choice.applied(STARTS, given(), NOW + SECOND) == STARTS


def test_a_host_that_publishes_nothing_delays_only_the_first_job() -> None:
    see(NOW)
    choice, soon = choice_of(), NOW + HEARD_WITHIN
    second = Plan(placements=(Placement(job_id=2, host="east", gpu_uuids=(gpu_uuid(0),)),))
    more = PlanInput([queued_job(2)], given().slots, PlanPolicy(), PlannerThresholds())

    assert choice.applied(STARTS, given(), NOW).placements == ()
    assert choice.applied(STARTS, given(), soon) == STARTS
    assert choice.applied(second, more, soon + SECOND) == second


def start(job: Job, dispatchers: Mapping[str, Dispatcher]) -> str:
    """The host that starts it, if both plan twice a second."""
    at = job.submitted_at
    for _ in range(4):
        at += SECOND / 2
        for each in dispatchers.values():
            each.step(at)
    return Job.objects.get(pk=job.pk).attempts.get().host


@pytest.mark.parametrize(("priority", "chosen"), [(5, "east"), (1, "west")])
@pytest.mark.parametrize("order", [("east", "west"), ("west", "east")])
def test_urgent_jobs_start_on_the_strongest_gpu_of_all_hosts_and_background_jobs_on_the_weakest(
    alice: User, priority: int, chosen: str, order: tuple[str, str]
) -> None:
    see(NOW, west=T4)
    dispatchers = {name: dispatcher(name) for name in order}

    assert start(submit(alice, NOW, priority=priority), dispatchers) == chosen


def test_a_job_starts_where_it_starts_first_whatever_the_rank(alice: User) -> None:
    see(NOW, west=T4)
    dispatchers = {name: dispatcher(name) for name in ("east", "west")}
    start(submit(alice, NOW, host="east"), dispatchers)

    assert start(submit(alice, NOW + 3 * SECOND, priority=5), dispatchers) == "west"


def test_a_new_job_preempts_only_once_every_host_has_planned_it() -> None:
    see(NOW)
    asks = Plan(preemptions=(Yield(job_id=9, code="Preempted", text="", for_job=1),))
    choice = choice_of(1)

    assert choice.applied(asks, given(NOW - SECOND), NOW).preemptions == ()
    assert choice.applied(asks, given(), NOW) == asks


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
