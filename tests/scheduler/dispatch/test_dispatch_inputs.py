from __future__ import annotations

from dataclasses import replace
from datetime import time, timedelta

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from monitor.gpus.rows import snapshot as monitor_store
from monitor.models import ProcessUse
from monitor.thresholds import rows as thresholds
from scheduler.dispatch import inputs as plan_inputs
from scheduler.dispatch.inputs import PlanInput, PlanInputs
from scheduler.facts.jobs import QueuedJob, Requirement
from scheduler.facts.plans import PlanPolicy, Throttle
from scheduler.jobs.rows import changes as job_changes
from scheduler.jobs.rows import durations
from scheduler.jobs.rows.durations import usual_duration
from scheduler.limits.throttle import step as throttle_rows
from scheduler.limits.throttle.policy.throttle import ThrottleMemory
from scheduler.limits.time_windows import rows as window_rows
from scheduler.models import Attempt, Job, TimeWindow
from tests import jobs_made
from tests.builders import GIB, NOW, gpu, gpu_uuid, process, snapshot

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("data")]


def plan_input() -> PlanInput:
    supply = PlanInputs("gpubox", PlanPolicy(margin_bytes=0))
    return supply.given(supply.queue(NOW), NOW)


def test_the_queue_holds_what_waits(alice: User) -> None:
    request = Requirement(
        gpus=2, memory_bytes=GIB, exclusive=True, capability=(8, 0), model="A100", power=300.0
    )
    job = jobs_made.waiting(
        alice, requirement=request, priority=4, time_limit=timedelta(hours=2), name="big"
    )
    jobs_made.placed(alice)

    (queued,) = plan_input().queue
    assert queued.expected is not None
    assert [replace(queued, expected=None)] == [
        QueuedJob(
            id=job.pk,
            owner="alice",
            priority=4,
            submitted_at=NOW,
            requirement=request,
            time_limit=timedelta(hours=2),
        )
    ]


def test_equal_requirements_are_one_object(alice: User) -> None:
    jobs_made.waiting(alice)
    jobs_made.waiting(alice)
    first, second = plan_input().queue

    assert first.requirement is second.requirement


def test_a_placed_job_is_there_with_its_end(alice: User) -> None:
    monitor_store.record(snapshot(1))
    job = jobs_made.running(alice, time_limit=timedelta(hours=1))
    jobs_made.waiting(alice)

    (running,) = plan_input().slots.running
    assert (running.id, running.gpu_uuids, running.yields) == (job.pk, (gpu_uuid(),), False)
    assert running.ends_at == NOW + timedelta(seconds=2, hours=1)


def test_it_knows_how_long_such_jobs_usually_take(alice: User) -> None:
    for _ in range(3):
        jobs_made.finished(alice)
    jobs_made.waiting(alice)
    jobs_made.waiting(alice, name="another")

    known, unknown = plan_input().queue
    assert known.usual == known.typical == timedelta(minutes=2, seconds=58)
    assert unknown.usual is None


def test_undeclared_jobs_have_the_host_memory_and_cpus_of_earlier_runs(alice: User) -> None:
    for _ in range(3):
        jobs_made.finished(alice, peak_memory_bytes=4 * GIB, cpu_s=267.0)
    jobs_made.running(alice)
    jobs_made.waiting(alice)
    jobs_made.waiting(alice, requirement=Requirement(gpus=0), memory_bytes=GIB, cpus=2.0)
    jobs_made.waiting(alice, name="another")

    given = plan_input()
    first, declared, unknown = (job.requirement for job in given.queue)
    assert (first.usual_memory_bytes, first.usual_cpus) == (4.5 * GIB, 1.5)
    assert (declared.usual_memory_bytes, declared.usual_cpus) == (None, None)
    assert (unknown.usual_memory_bytes, unknown.usual_cpus) == (None, None)
    (placed,) = given.slots.running
    assert (placed.requirement.usual_memory_bytes, placed.requirement.usual_cpus) == (
        4.5 * GIB, 1.5,
    )  # fmt: skip


def test_half_and_nine_of_ten_took_no_longer() -> None:
    duration = usual_duration([timedelta(minutes=minutes) for minutes in range(1, 11)])

    assert (duration.p50, duration.p90) == (timedelta(minutes=5), timedelta(minutes=9))


def test_it_keeps_what_a_foreign_process_once_held(alice: User) -> None:
    first = process(memory_bytes=10 * GIB)
    monitor_store.record(snapshot([gpu(0, memory_used_bytes=10 * GIB)], [first]))
    peak = ProcessUse.objects.create(
        host="gpubox",
        pid=first.pid,
        start_ticks=first.start_ticks or 0,
        gpu_id=gpu_uuid(),
        peak_memory_bytes=20 * GIB,
        first_seen_at=NOW,
        last_seen_at=NOW,
    )
    jobs_made.waiting(alice)
    assert plan_input().slots.gpus[0].free_bytes == 58 * GIB

    ProcessUse.objects.filter(pk=peak.pk).update(ended_at=NOW)
    assert plan_input().slots.gpus[0].free_bytes == 70 * GIB


def test_it_reads_no_gpu_for_jobs_that_want_none(
    alice: User, django_assert_max_num_queries: type[CaptureQueriesContext]
) -> None:
    jobs_made.waiting(alice, requirement=replace(Requirement(), gpus=0))
    supply = PlanInputs("gpubox", PlanPolicy())
    supply.given(supply.queue(NOW), NOW)

    with django_assert_max_num_queries(7):
        assert supply.given(supply.queue(NOW), NOW).slots.gpus == ()


def test_a_long_queue_is_read_again_when_it_changes_or_is_old(
    alice: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scheduler.dispatch.inputs.LONG", 0)
    first, second = jobs_made.waiting(alice), jobs_made.waiting(alice)
    queue = PlanInputs("gpubox", PlanPolicy()).queue
    assert len(queue(NOW, mark=1)) == 2
    second.delete()
    assert len(queue(NOW, mark=1)) == 2
    assert job_changes.hold_job(first.pk, "alice", NOW)

    assert [bool(job.waits) for job in queue(NOW, mark=1)] == [True, False]
    assert len(queue(NOW, mark=2)) == 1
    first.delete()
    assert queue(NOW + timedelta(seconds=5), mark=2) == []


def test_it_knows_how_busy_gpus_are_from_the_controllers_looks(alice: User) -> None:
    monitor_store.record(snapshot([gpu(0), gpu(1)]))
    jobs_made.waiting(alice)
    throttle_rows.save("gpubox", ThrottleMemory(), Throttle(uses={gpu_uuid(1): 60.0}), NOW)

    assert [slot.use_pct for slot in plan_input().slots.gpus] == [None, 60.0]


def test_a_long_queue_is_followed_by_reading_only_who_has_come(
    alice: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan_inputs, "LONG", 1)
    first, goes, stays = (jobs_made.waiting(alice, name=name) for name in ("a", "b", "c"))
    inputs = PlanInputs("gpubox", PlanPolicy())
    inputs.queue(NOW, durations.queue_mark())

    jobs_made.place_again(goes)
    new = jobs_made.waiting(alice, name="d")
    Job.objects.filter(pk=first.pk).update(name="renamed")
    with CaptureQueriesContext(connection) as queries:
        queue = inputs.queue(NOW, durations.queue_mark())

    assert [job.id for job in queue] == [first.pk, stays.pk, new.pk]
    assert (
        len([q for q in queries if "auth_user" in q["sql"] and f"IN ({new.pk})" in q["sql"]]) == 1
    )
    assert len([q for q in queries if "auth_user" in q["sql"]]) == 1


def test_one_that_went_and_one_that_came_back_change_the_mark(alice: User) -> None:
    one, _ = jobs_made.placed(alice)
    other = jobs_made.waiting(alice)
    jobs_made.waiting(alice)
    before = durations.queue_mark()

    jobs_made.place_again(other, on=(1,))
    Attempt.objects.filter(job=one).update(ended_at=NOW)
    Job.objects.filter(pk=one.pk).update(state="queued")

    assert durations.queue_mark() != before


def _open_window(user: User) -> TimeWindow:
    days = list(range(7))
    row = TimeWindow(user=user, days=days, start=time(0), end=time(23, 59), zone="UTC")
    return window_rows.ask(row, user, NOW)


def test_a_window_that_was_just_approved_is_in_the_next_plan(alice: User) -> None:
    supply, row = PlanInputs("gpubox", PlanPolicy()), _open_window(alice)
    jobs_made.waiting(alice)
    assert supply.given(supply.queue(NOW), NOW).slots.windows == ()

    window_rows.decide(row.pk, TimeWindow.State.APPROVED, "root", NOW)

    (approved,) = supply.given(supply.queue(NOW), NOW).slots.windows
    assert approved.id == row.pk


def test_a_threshold_that_was_just_changed_is_in_the_next_plan(alice: User) -> None:
    supply = PlanInputs("gpubox", PlanPolicy())
    jobs_made.waiting(alice)
    assert supply.given(supply.queue(NOW), NOW).rules.order.age_weight == 0.02

    thresholds.change("order", {"age_weight": 3.0}, by="root", now=NOW)

    assert supply.given(supply.queue(NOW), NOW).rules.order.age_weight == 3.0


def test_a_quota_that_was_just_set_is_in_the_next_plan(admin_client: Client, alice: User) -> None:
    supply = PlanInputs("gpubox", PlanPolicy())
    jobs_made.waiting(alice)
    assert supply.given(supply.queue(NOW), NOW).slots.people["alice"].quota.gpus is None

    fields = {"user": alice.pk, "gpus": 2, "reserved_pct": 20}
    answer = admin_client.post("/admin/scheduler/quota/add/", fields)

    assert answer.status_code == 302
    assert supply.given(supply.queue(NOW), NOW).slots.people["alice"].quota.gpus == 2
