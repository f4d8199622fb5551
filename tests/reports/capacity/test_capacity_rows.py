"""Recorded work is read from jobs, attempts and hours."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.contrib.auth.models import User

from monitor.facts.readings import Health
from monitor.gpus.rows import snapshot as snapshots
from monitor.models import GpuHour, ProcessHour
from reports.capacity import rows
from scheduler.facts.jobs import PriorityClass
from scheduler.limits.quotas.policy import charging
from scheduler.models import DailyGpuUsage, Job
from scheduler.queue.planner import blockers as stored_blockers
from tests import jobs_made
from tests.builders import GIB, NOW, gpu, gpu_uuid, snapshot
from tests.monitor.past import NOTHING, gpu_row, process_use

pytestmark = pytest.mark.django_db
DAY = timedelta(days=1)
LATER = NOW + timedelta(hours=1)


def work(most: int = 100) -> rows.RecordedWork:
    return rows.recorded_work("gpubox", NOW - DAY, LATER, most)


def test_a_finished_job_has_the_run_time_of_its_attempts(alice: User) -> None:
    jobs_made.finished(alice)
    (job,) = work().jobs
    # Placed after 1 s, ended after 3 min.
    assert job.run_time == timedelta(seconds=179)
    assert (job.owner, job.is_counted, job.is_assumed) == ("alice", True, False)
    assert job.started_at == NOW + timedelta(seconds=1)


def test_a_running_job_runs_at_least_as_long_as_so_far(alice: User) -> None:
    jobs_made.running(alice)
    (job,) = work().jobs
    assert (job.run_time, job.is_assumed) == (timedelta(seconds=3599), True)


def test_a_waiting_job_counts_with_its_estimate_and_is_left_out_without(alice: User) -> None:
    jobs_made.waiting(alice, estimate=timedelta(hours=2))
    endless = jobs_made.waiting(alice)
    found = work()
    assert [job.run_time for job in found.jobs] == [timedelta(hours=2)]
    assert (found.jobs[0].is_counted, found.left_out) == (False, 1)
    assert [job.id for job in found.without_run_time] == [endless.pk]


def test_a_job_that_was_cancelled_while_it_waited_is_left_out(alice: User) -> None:
    job = jobs_made.waiting(alice)
    Job.objects.filter(pk=job.pk).update(state="finished", outcome="cancelled", ended_at=LATER)
    found = work()
    assert (found.jobs, found.left_out) == ((), 1)


def test_of_a_job_from_before_only_the_rest_counts(alice: User) -> None:
    jobs_made.finished(alice)
    found = rows.recorded_work("gpubox", NOW + timedelta(minutes=1), LATER, 100)
    (job,) = found.jobs
    assert (job.run_time, job.is_counted) == (timedelta(minutes=2), False)
    assert job.eligible_at == NOW + timedelta(minutes=1)


def test_only_the_newest_jobs_are_read(alice: User) -> None:
    for _ in range(3):
        jobs_made.waiting(alice, estimate=timedelta(hours=1))
    newest = sorted(Job.objects.values_list("pk", flat=True))[-2:]
    assert [job.id for job in work(most=2).jobs] == newest


def test_jobs_of_other_hosts_are_not_replayed_here(alice: User) -> None:
    jobs_made.finished(alice)
    assert rows.recorded_work("other", NOW - DAY, LATER, 100).jobs == ()


def test_hours_without_a_measurement_are_unknown() -> None:
    row = gpu_row("GPU-1", NOW)
    known = NOTHING | {"utilization_pct_s": 180_000.0, "utilization_known_s": 3600}
    GpuHour.objects.create(gpu=row, t=int(NOW.timestamp()), **known)
    (hour,) = rows.gpu_hours(["GPU-1"], NOW - DAY)["GPU-1"]
    assert (hour.utilisation_pct, hour.memory_bytes, hour.joules) == (50.0, None, None)


def test_processes_outside_jobs_are_summed_by_hour() -> None:
    row, t = gpu_row("GPU-1", NOW), int(NOW.timestamp())
    for job_ref in ("", "7"):
        use = process_use(row, NOW, host="gpubox", job_ref=job_ref, pid=len(job_ref) + 1)
        ProcessHour.objects.create(
            use=use, t=t, sm_s=1800, held_s=3600, known_s=3600, memory_byte_s=3600 * GIB
        )
    used, held = rows.outside("gpubox", NOW - DAY)
    assert (used, held) == ({t: 0.5}, {t: {"GPU-1": GIB}})


def test_memory_of_others_ends_where_nothing_is_recorded() -> None:
    t = 3600 * 100
    changes = rows.foreign_memory({t: {"a": 1}, t + 3600: {"a": 2}, t + 4 * 3600: {"b": 3}})
    at = [int(when.timestamp() - t) // 3600 for when, _ in changes]
    assert at == [0, 1, 2, 4, 5]
    assert [dict(held) for _, held in changes] == [{"a": 1}, {"a": 2}, {}, {"b": 3}, {}]
    assert changes[0][0] == datetime.fromtimestamp(t, UTC)


def test_only_gpus_that_answer_are_supply() -> None:
    snapshots.record(snapshot([gpu(0), gpu(1, health=Health.LOST)]))
    assert [one.uuid for one in rows.gpus("gpubox")] == [gpu_uuid(0)]
    assert rows.gpus("other") == []


def logged(job: Job, *changes: tuple[int, str]) -> None:
    """(minutes after NOW, main blocker)."""
    text = "".join(
        stored_blockers.log_entry(code, NOW + timedelta(minutes=at)) for at, code in changes
    )
    Job.objects.filter(pk=job.pk).update(blocker_log=text)


def test_holds_come_from_what_was_recorded_with_the_job(alice: User) -> None:
    job, _ = jobs_made.placed(alice)
    job = jobs_made.running(alice)
    logged(job, (-30, "Held"), (-10, "GpuTaken"))
    found = {one.id: one.holds for one in work().jobs}[job.pk]
    assert found == ((NOW - timedelta(minutes=30), NOW - timedelta(minutes=10)),)


def test_times_of_load_of_several_jobs_are_joined_by_class(alice: User) -> None:
    for at in (0, 5):
        logged(jobs_made.waiting(alice), (at, "Pressure"), (at + 10, "GpuTaken"))
    logged(jobs_made.waiting(alice, priority=1), (40, "Pressure"), (50, "GpuTaken"))
    found = rows.held_back(NOW - timedelta(days=1), NOW + timedelta(hours=1))

    def minutes(kind: PriorityClass) -> list[tuple[float, float]]:
        return [((a - NOW).seconds / 60, (b - NOW).seconds / 60) for a, b in found[kind]]

    assert minutes(PriorityClass.NORMAL) == [(0, 15)]
    assert minutes(PriorityClass.BACKGROUND) == [(40, 50)]


def test_past_usage_and_use_outside_jobs_come_from_the_ledger() -> None:
    begin = charging.day(NOW, "UTC").from_at
    for days, seconds in ((-2, 20 * 3600), (0, 12 * 3600)):
        DailyGpuUsage.objects.create(
            host="gpubox", owner="alice", from_at=begin + timedelta(days=days), outside_s=seconds
        )
    found = rows.accounts("gpubox", ["alice"], begin, 1)
    assert found.usage["alice"] == pytest.approx(20 / 24 * (1 - 0.5**0.5) * 0.5**0.5)
    assert found.outside[-1] == (begin, {"alice": 0.5})
