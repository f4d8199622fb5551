from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from monitor.facts.gpus import ClosureFact, ClosureKind
from monitor.gpus.rows import closures as availability
from monitor.gpus.rows import snapshot as monitor_store
from monitor.models import Claim
from scheduler.dispatch.steps import dispatcher
from scheduler.dispatch.steps.dispatcher import Dispatcher
from scheduler.facts.jobs import NewJob, Requirement, YieldOptions
from scheduler.facts.plans import PlanPolicy
from scheduler.jobs.rows import changes as job_changes
from scheduler.models import Attempt, Job, Quota, TimeWindow, YieldRequest
from scheduler.queue.planner import blockers as stored_blockers
from tests.builders import GIB, NOW, gpu, gpu_uuid, host, process, snapshot

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("data")]
SECOND = timedelta(seconds=1)


def _dispatcher(on: str = "gpubox") -> Dispatcher:
    return Dispatcher(transaction.atomic, on, PlanPolicy(cpu_jobs=1))


def _submit(owner: User, gpus: int = 1, **changes: Any) -> Job:
    request = Requirement(gpus=gpus, exclusive=gpus > 0)
    return job_changes.submit(NewJob(command="true", requirement=request, **changes), owner, NOW)


def _see(gpus: int = 1, at_s: float = 0, **changes: Any) -> None:
    monitor_store.record(snapshot(gpus, at=NOW + at_s * SECOND, **changes))


def _why(job: Job) -> list[str]:
    job.refresh_from_db()
    return [blocker["code"] for blocker in job.blockers]


def test_it_has_nothing_to_do_for_an_empty_queue() -> None:
    assert _dispatcher().step(NOW) == []


def test_it_places_a_job_on_the_gpu_that_it_saw(alice: User) -> None:
    _see()
    job = _submit(alice)

    (attempt,) = _dispatcher().step(NOW)
    assert (attempt.job_id, attempt.gpu_uuids, attempt.host) == (job.pk, [gpu_uuid(0)], "gpubox")


def _change_after_planning(monkeypatch: pytest.MonkeyPatch, change: Callable[[], object]) -> None:
    """Run `change` once a plan is made and before it is committed."""
    plan = dispatcher.plan

    def plan_then_change(*args: Any) -> Any:
        made = plan(*args)
        change()
        return made

    monkeypatch.setattr(dispatcher, "plan", plan_then_change)


def test_a_job_that_is_held_while_the_plan_is_made_does_not_start(
    alice: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    _see()
    job = _submit(alice)
    _change_after_planning(monkeypatch, lambda: job_changes.hold_job(job.pk, "root", NOW))

    assert _dispatcher().step(NOW) == []
    job.refresh_from_db()
    assert job.state == "queued"


def test_a_job_that_needs_more_memory_than_planned_does_not_start(
    alice: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    _see()
    request = Requirement(gpus=1, memory_bytes=GIB)
    job = job_changes.submit(NewJob(command="true", requirement=request), alice, NOW)
    rows = Job.objects.filter(pk=job.pk)
    _change_after_planning(monkeypatch, lambda: rows.update(gpu_memory_bytes=90 * GIB))

    assert _dispatcher().step(NOW) == []
    job.refresh_from_db()
    assert job.state == "queued"


def test_it_sees_no_gpu_of_another_host(alice: User) -> None:
    _see(host=host(name="elsewhere"))
    job = _submit(alice)

    assert _dispatcher().step(NOW) == []
    assert _why(job) == ["NoReading"]


def test_it_counts_jobs_without_a_gpu_on_its_host(alice: User) -> None:
    first, second = _submit(alice, gpus=0), _submit(alice, gpus=0)

    assert [a.job_id for a in _dispatcher().step(NOW)] == [first.pk]
    assert _why(second) == ["CpuPlaces"]
    # Another host has places of its own.
    assert [a.job_id for a in _dispatcher("other").step(NOW)] == [second.pk]


@pytest.mark.django_db(transaction=True)
@pytest.mark.skipif("connection.vendor != 'sqlite'", reason="PostgreSQL always syncs")
def test_a_placement_is_on_the_disk_but_reasons_alone_need_not_be(alice: User) -> None:
    levels: list[int] = []

    @contextmanager
    def guard() -> Iterator[None]:
        with connection.cursor() as cursor:
            levels.append(int(cursor.execute("PRAGMA synchronous").fetchone()[0]))
        with transaction.atomic():
            yield

    step = Dispatcher(guard, "gpubox", PlanPolicy(cpu_jobs=1)).step
    _see()
    _submit(alice)
    step(NOW)
    _submit(alice)
    step(NOW + SECOND)

    # 2 is FULL: the commit waits for the disk.
    assert levels == [2, 1]


def test_it_plans_again_when_a_job_came(alice: User) -> None:
    _see()
    dispatcher = _dispatcher()
    dispatcher.step(NOW)
    job = _submit(alice)

    assert [a.job_id for a in dispatcher.step(NOW, has_room=False)] == [job.pk]


def test_it_plans_again_when_a_job_has_ended(alice: User) -> None:
    _see()
    dispatcher = _dispatcher()
    first, second = _submit(alice), _submit(alice)
    dispatcher.step(NOW)
    dispatcher.step(NOW, has_room=False)
    monitor_store.close_claims(str(first.pk), NOW)

    assert [a.job_id for a in dispatcher.step(NOW, has_room=False)] == []
    assert [a.job_id for a in dispatcher.step(NOW, has_room=True)] == [second.pk]


def test_it_plans_again_when_memory_of_an_ended_job_is_free(alice: User) -> None:
    _see()
    dispatcher = _dispatcher()
    first, second = _submit(alice), _submit(alice)
    dispatcher.step(NOW)
    monitor_store.close_claims(str(first.pk), NOW)
    _see(processes=[process(job_ref=str(first.pk))])
    assert dispatcher.step(NOW) == []

    _see()
    monitor_store.mark_claims_freed(
        [claim.pk for claim in Claim.objects.filter(job_ref=first.pk)], NOW
    )
    assert [a.job_id for a in dispatcher.step(NOW, has_room=False)] == [second.pk]


def test_it_plans_again_with_the_next_reading(alice: User) -> None:
    dispatcher = _dispatcher()
    job = _submit(alice)
    dispatcher.step(NOW)
    _see(at_s=1)

    assert [a.job_id for a in dispatcher.step(NOW + SECOND, has_room=False)] == [job.pk]


def test_it_writes_no_reason_again_that_is_there(alice: User) -> None:
    job = _submit(alice)
    _dispatcher().step(NOW)
    blockers = Job.objects.get(pk=job.pk).blockers
    blockers[0]["text"] = "as it was"
    Job.objects.filter(pk=job.pk).update(blockers=blockers)

    # Nor does the next dispatcher, that takes over from this one.
    _dispatcher().step(NOW)
    job.refresh_from_db()
    assert job.blockers[0]["text"] == "as it was"


def test_it_writes_a_new_reason(alice: User) -> None:
    dispatcher = _dispatcher()
    job = _submit(alice)
    dispatcher.step(NOW)
    _see(gpus=0, problem="The driver is not loaded.", at_s=1)
    dispatcher.step(NOW + SECOND)

    assert _why(job) == ["NoGpu"]


def test_a_placed_job_has_no_reason_to_wait_any_more(alice: User) -> None:
    job = _submit(alice)
    dispatcher = _dispatcher()
    dispatcher.step(NOW)
    _see(at_s=1)
    dispatcher.step(NOW + SECOND)

    assert _why(job) == []
    assert job.state == "starting"


def test_two_dispatchers_place_a_job_once(alice: User) -> None:
    _see()
    _submit(alice)

    assert len(_dispatcher().step(NOW)) == 1
    assert len(_dispatcher().step(NOW)) == 0
    assert Attempt.objects.count() == 1


def test_it_asks_a_job_to_leave_for_a_more_important_one(alice: User) -> None:
    _see()
    dispatcher = _dispatcher()
    low = _submit(alice, priority=1, yield_options=YieldOptions(preemptible=True))
    dispatcher.step(NOW)
    _submit(alice, priority=5)
    _see(at_s=3600)
    dispatcher.step(NOW + 3600 * SECOND)
    dispatcher.step(NOW + 3601 * SECOND)

    (yield_request,) = YieldRequest.objects.all()
    assert (yield_request.attempt.job_id, yield_request.kind) == (low.pk, "preemption")


def test_it_holds_people_to_their_limits(alice: User) -> None:
    _see(gpus=2)
    Quota.objects.create(user=alice, gpus=1)
    first, second = _submit(alice), _submit(alice)

    assert [a.job_id for a in _dispatcher().step(NOW)] == [first.pk]
    assert _why(second)[0] == "UserMaxGpus"


def test_it_starts_nothing_on_a_gpu_that_is_paused(alice: User) -> None:
    _see()
    availability.close(
        ClosureFact(gpu_uuid=gpu_uuid(0), kind=ClosureKind.PAUSED, since=NOW, by="root"), "gpubox"
    )
    job = _submit(alice)

    assert _dispatcher().step(NOW) == []
    assert _why(job) == ["GpuPaused"]


def test_an_hour_of_steady_waiting_writes_no_reason_twice(alice: User) -> None:
    """Though the clock goes on, figures wobble and ends come nearer."""
    job = _submit(alice)
    writes = 0
    dispatcher = _dispatcher()
    for minute in range(0, 60, 3):
        busy = gpu(0, memory_used_bytes=30 * GIB + minute * 2**20)
        holder = process(memory_bytes=30 * GIB + minute * 2**20)
        monitor_store.record(snapshot([busy], [holder], at=NOW + minute * 60 * SECOND))
        before = Job.objects.filter(pk=job.pk).values_list("blockers", flat=True).get()
        dispatcher.step(NOW + minute * 60 * SECOND)
        after = Job.objects.filter(pk=job.pk).values_list("blockers", flat=True).get()
        writes += before != after

    assert writes == 1


def test_figures_that_swing_are_no_news(alice: User) -> None:
    request = Requirement(gpus=1, memory_bytes=70 * GIB)
    job = job_changes.submit(NewJob(command="true", requirement=request), alice, NOW)
    dispatcher = _dispatcher()
    stored = []
    for minute in range(50):
        free = (4 + minute % 7, 9 - minute % 5, 6)
        gpus = [gpu(n, memory_used_bytes=(80 - f) * GIB) for n, f in enumerate(free)]
        held = [process(900 + n, on=n, memory_bytes=(80 - f) * GIB) for n, f in enumerate(free)]
        monitor_store.record(snapshot(gpus, held, at=NOW + minute * 60 * SECOND))
        dispatcher.step(NOW + minute * 60 * SECOND)
        job.refresh_from_db()
        stored.append(str(job.blockers))

    assert "GpuMemory" in stored[0]
    assert len(set(stored)) == 1


@pytest.mark.parametrize("share_pct", [100.0, 50.0])
def test_who_must_leave_before_an_agreed_time_is_asked_though_nobody_waits(
    alice: User, bob: User, share_pct: float
) -> None:
    _see()
    dispatcher = _dispatcher()
    job = _submit(alice, yield_options=YieldOptions(preemptible=True))
    dispatcher.step(NOW)
    begins = NOW + 300 * SECOND
    TimeWindow.objects.create(
        user=bob,
        days=[begins.weekday()],
        start=begins.time(),
        end=(begins + 3600 * SECOND).time(),
        zone="UTC",
        share_pct=share_pct,
        state=TimeWindow.State.APPROVED,
        asked_by="bob",
        asked_at=NOW,
    )
    dispatcher.step(NOW + 3 * SECOND)

    (yield_request,) = YieldRequest.objects.all()
    assert (yield_request.attempt.job_id, yield_request.kind, yield_request.deadline) == (
        job.pk,
        "eviction",
        begins,
    )


def test_while_nobody_waits_the_queue_is_not_read() -> None:
    dispatcher = _dispatcher()
    dispatcher.step(NOW)
    with CaptureQueriesContext(connection) as yield_request:
        dispatcher.step(NOW + 1 * SECOND)

    assert len([query for query in yield_request if "scheduler_job" in query["sql"]]) == 1


def _passes(dispatcher: Dispatcher, since_s: int, until_s: int) -> None:
    for at_s in range(since_s, until_s):
        _see(at_s=at_s)
        dispatcher.step(NOW + at_s * SECOND)


def test_each_change_of_the_main_blocker_is_kept_with_the_job(alice: User, bob: User) -> None:
    limit = Quota.objects.create(user=alice, gpus=0)
    job = _submit(alice)
    _passes(_dispatcher(), 0, 3)
    limit.delete()
    Quota.objects.create(user=alice, jobs=0)
    _passes(_dispatcher(), 10, 13)
    _passes(_dispatcher(), 13, 15)

    job.refresh_from_db()
    at = int(NOW.timestamp())
    assert job.blocker_log == f"{at} UserMaxGpus;{at + 10} UserMaxJobs;"


def test_the_log_of_a_job_whose_blocker_changes_often_stays_short(alice: User) -> None:
    job = _submit(alice)
    Job.objects.filter(pk=job.pk).update(blocker_log="1 Pressure;" * 400)
    _see(0)
    _dispatcher().step(NOW)

    job.refresh_from_db()
    assert len(job.blocker_log) == stored_blockers.LONGEST_LOG
    assert job.blocker_log.endswith(f"{int(NOW.timestamp())} {_why(job)[0]};")
