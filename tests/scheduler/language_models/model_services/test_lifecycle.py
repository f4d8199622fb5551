"""The next state of an instance, and how many instances a service has."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from scheduler.facts.jobs import JobState, Outcome
from scheduler.facts.language_models import InstanceFact, InstanceState, ServiceFact
from scheduler.language_models.model_services.policy import (
    Change,
    Command,
    JobView,
    backoff,
    next_step,
    scale,
)
from tests.builders import NOW

RUNNING = JobView(state=JobState.RUNNING)
BOOTING, READY = InstanceState.BOOTING, InstanceState.READY


def seconds(n: float) -> timedelta:
    return timedelta(seconds=n)


def service(**changes: Any) -> ServiceFact:
    fixed: dict[str, Any] = {"id": 1, "name": "small"}
    return ServiceFact(**(fixed | changes))


def instance(state: InstanceState = READY, **changes: Any) -> InstanceFact:
    fixed: dict[str, Any] = {"id": 1, "service_id": 1, "state": state, "since": NOW, "job_id": 7}
    ready = {"ready_at": NOW, "answered_at": NOW} if state is READY else {}
    return InstanceFact(**(fixed | ready | changes))


def step(
    one: InstanceFact, job: JobView | None = RUNNING, *, is_healthy: bool = False, late_s: float = 1
) -> Change | None:
    return next_step(one, job, is_healthy=is_healthy, boot_timeout_s=600, now=NOW + seconds(late_s))


def ended(outcome: Outcome, problem: str = "") -> JobView:
    return JobView(state=JobState.FINISHED, outcome=outcome, problem=problem)


def test_an_instance_is_ready_when_its_server_answers() -> None:
    booting = instance(BOOTING, started_boot_at=NOW)

    assert step(booting) is None
    assert step(booting, is_healthy=True) == Change(state=READY)


def test_a_boot_that_waits_for_a_gpu_has_no_time_limit() -> None:
    assert step(instance(BOOTING), JobView(state=JobState.QUEUED), late_s=10_000) is None


def test_a_boot_ends_after_its_time_limit() -> None:
    change = step(instance(BOOTING, started_boot_at=NOW), late_s=601)

    assert change is not None
    assert (change.state, change.command) == (InstanceState.COOLING, Command.CANCEL)
    assert change.is_failure


def test_a_process_that_ends_by_itself_has_failed() -> None:
    change = step(instance(), ended(Outcome.FAILED, "exit code 1"))

    assert change == Change(state=InstanceState.FAILED, reason="exit code 1", is_failure=True)


def test_an_instance_whose_job_was_cancelled_is_stopped() -> None:
    change = step(instance(), ended(Outcome.CANCELLED))

    assert change is not None
    assert change.state is InstanceState.STOPPED
    assert not change.is_failure


def test_a_job_that_is_asked_to_leave_takes_no_more_requests() -> None:
    asked = JobView(state=JobState.RUNNING, leaves=True, problem="alice needs GPU 0.")

    assert step(instance(), asked) == Change(
        state=InstanceState.COOLING, reason="alice needs GPU 0.", is_eviction=True
    )


def test_a_draining_instance_ends_its_requests_first() -> None:
    busy = instance(InstanceState.DRAINING, in_flight=1)

    assert step(busy) is None
    assert step(busy, late_s=61) is not None
    assert step(instance(InstanceState.DRAINING)) == Change(
        state=InstanceState.COOLING, command=Command.CANCEL
    )


def test_a_ready_instance_that_stops_answering_is_replaced() -> None:
    assert step(instance(), late_s=119) is None
    change = step(instance(), late_s=121)

    assert change is not None
    assert change.is_failure


def test_the_pause_after_failures_doubles_up_to_ten_minutes() -> None:
    assert [backoff(n).total_seconds() for n in (1, 2, 3, 20)] == [5, 10, 20, 600]


def test_the_minimum_of_instances_is_booted() -> None:
    small = service(min_instances=2, max_instances=3)

    assert scale(small, [], NOW).boot == 2
    assert scale(small, [instance(BOOTING)], NOW).boot == 1


def test_a_request_joins_a_boot_under_way() -> None:
    small = service(max_instances=2, wanted_at=NOW)

    assert scale(small, [], NOW).boot == 1
    assert scale(small, [instance(BOOTING)], NOW).boot == 0


def test_a_request_boots_another_instance_when_all_are_full() -> None:
    small = service(max_instances=2, concurrency=1, wanted_at=NOW + seconds(5))
    full = instance(in_flight=1)

    assert scale(small, [full], NOW + seconds(6)).boot == 1
    assert scale(small, [instance()], NOW + seconds(6)).boot == 0


def test_no_more_than_the_maximum_is_booted() -> None:
    small = service(max_instances=1, concurrency=1, wanted_at=NOW + seconds(5))

    assert scale(small, [instance(in_flight=1)], NOW + seconds(6)).boot == 0


def test_an_old_demand_boots_nothing() -> None:
    assert scale(service(wanted_at=NOW), [], NOW + seconds(61)).boot == 0


def test_nothing_boots_before_the_pause_is_over() -> None:
    small = service(min_instances=1, retry_at=NOW + seconds(5))

    assert scale(small, [], NOW).boot == 0
    assert scale(small, [], NOW + seconds(5)).boot == 1


def test_an_idle_instance_above_the_minimum_is_unloaded_after_its_time() -> None:
    small = service(keep_alive_s=60)

    assert scale(small, [instance()], NOW + seconds(59)).unload == ()
    assert scale(small, [instance()], NOW + seconds(60)).unload == ((1, "It was idle for 60 s."),)


def test_the_minimum_busy_ones_and_those_without_a_limit_stay() -> None:
    late = NOW + seconds(10_000)

    assert scale(service(min_instances=1), [instance()], late).unload == ()
    assert scale(service(), [instance(in_flight=1)], late).unload == ()
    assert scale(service(keep_alive_s=None), [instance()], late).unload == ()


def test_instances_above_a_lowered_maximum_are_unloaded() -> None:
    two = [instance(), instance(id=2)]

    ((id_, reason),) = scale(service(max_instances=1), two, NOW).unload

    assert id_ == 1
    assert "More than 1" in reason


def test_an_evicted_service_is_loaded_again_when_no_job_waits() -> None:
    gone = service(evicted_at=NOW, min_instances=1)

    assert scale(gone, [], NOW, scripts_wait=True).boot == 0
    assert scale(gone, [], NOW, others_boot=True).boot == 0
    assert scale(gone, [], NOW).boot == 1
    assert scale(gone, [instance(BOOTING)], NOW).boot == 0


def test_a_request_loads_an_evicted_service_although_jobs_wait() -> None:
    gone = service(evicted_at=NOW, wanted_at=NOW + seconds(1))

    assert scale(gone, [], NOW + seconds(2), scripts_wait=True).boot == 1
