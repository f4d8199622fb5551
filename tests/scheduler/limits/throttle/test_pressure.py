from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User

from monitor.facts.accounts import ClaimFact
from monitor.facts.gpus import Condition
from monitor.facts.readings import GpuReading, ProcessReading
from monitor.gpus.rows import snapshot as snapshots
from monitor.journal.rows import audit, events
from monitor.models import Constraint, Gpu
from monitor.thresholds import rows as thresholds
from scheduler.facts.jobs import PriorityClass, Requirement
from scheduler.facts.plans import RunningJob, Throttle
from scheduler.limits.throttle import step as throttle_rows
from scheduler.limits.throttle.policy.throttle import Mode, ModePolicy
from scheduler.limits.throttle.step import ThrottleStep, bound
from scheduler.models import Job, ModeState, ThrottleState
from scheduler.queue.wording import text
from tests import jobs_made
from tests.builders import GIB, NOW, gpu, gpu_uuid, host, process, snapshot

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("data")]
NORMAL, BACKGROUND = PriorityClass.NORMAL, PriorityClass.BACKGROUND
USER = PriorityClass.USER_INITIATED


def at(second: float) -> datetime:
    return NOW + timedelta(seconds=second)


def look(
    second: float,
    gpus: list[GpuReading],
    processes: list[ProcessReading] | None = None,
    **of_host: Any,
) -> Throttle:
    shot = snapshot(gpus, processes or [], at=at(second), host=host(**of_host))
    judgement = ThrottleStep("gpubox").judge(shot, at(second))
    assert judgement is not None
    return judgement


def busy(index: int = 0, use: float = 91.0) -> GpuReading:
    return gpu(index, utilization_pct=use, memory_used_bytes=GIB)


def foreign(index: int = 0, share: float = 91.0) -> ProcessReading:
    return process(4_200_000 + index, on=index, sm_pct=share)


def kinds() -> list[str]:
    recent = (event.kind for event in reversed(events.recent(100)))
    return [kind for kind in recent if not kind.startswith("JOB_")]


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    caplog.set_level(logging.INFO, logger="scheduler.limits.throttle.step")
    return lambda: [
        r.getMessage() for r in caplog.records if r.name == "scheduler.limits.throttle.step"
    ]


def test_an_idle_machine_holds_nobody_back() -> None:
    pressure = look(0, [gpu(0), gpu(1)])
    assert (pressure.closed, pressure.closed_gpus, pressure.starts) == ({}, {}, None)
    assert set(pressure.multipliers.values()) == {1.0}


def test_one_busy_gpu_is_closed_to_normal_jobs_and_the_idle_ones_are_not() -> None:
    pressure = look(0, [busy(0), gpu(1)], [foreign(0)])
    assert pressure.closed == {}
    assert {kind: set(gpus) for kind, gpus in pressure.closed_gpus.items()} == {
        NORMAL: {gpu_uuid(0)},
        BACKGROUND: {gpu_uuid(0)},
    }
    assert pressure.multipliers == {gpu_uuid(0): 0.1, gpu_uuid(1): 1.0}
    assert pressure.starts is None or pressure.starts >= 1


def test_background_jobs_leave_a_gpu_earlier_than_normal_ones() -> None:
    assert set(look(0, [busy(0, 75), gpu(1)]).closed_gpus) == {BACKGROUND}


def test_when_all_gpus_are_busy_the_waiting_jobs_are_deferred(
    alice: User,
    lines: Callable[[], list[str]],
    django_capture_on_commit_callbacks: Callable[..., Any],
) -> None:
    job = jobs_made.waiting(alice)
    with django_capture_on_commit_callbacks(execute=True):
        pressure = look(0, [busy(0)], [foreign(0)])
    expected = f"System under load, deferring job {job.pk} for 30 s (gpu_util=91)"
    assert lines() == [expected]
    assert throttle_rows.load("gpubox")[0].deferrals[NORMAL].until_t == at(30).timestamp()
    assert USER not in pressure.closed_gpus
    with django_capture_on_commit_callbacks(execute=True):
        for second in range(5, 35, 5):
            look(second, [busy(0)], [foreign(0)])
    assert len(lines()) == 2
    assert "for 6" in lines()[1] or "for 5" in lines()[1]
    later = jobs_made.waiting(alice)
    with django_capture_on_commit_callbacks(execute=True):
        look(35, [busy(0)], [foreign(0)])
    assert f"deferring job {later.pk} for 30 s" in lines()[2]
    assert len(lines()) == 3


def test_a_job_that_is_new_in_a_long_deferral_waits_30_s_at_most_after_the_load_has_gone(
    alice: User,
) -> None:
    jobs_made.waiting(alice)
    for second in range(0, 300, 5):
        look(second, [busy(0)], [foreign(0)])
    deferral = throttle_rows.load("gpubox")[0].deferrals[NORMAL]
    assert deferral.until_t > at(300 + 60).timestamp()

    calm = [look(second, [gpu(0)]).closed_gpus for second in range(300, 360, 5)]

    begin = next(n for n, closed in enumerate(calm) if NORMAL not in closed)
    # The smoothed use falls first, which takes 5 s here.
    assert 5 * begin <= 30 + 10


def test_the_line_of_a_deferred_job_has_its_figures_as_fields(
    alice: User,
    lines: Callable[[], list[str]],
    caplog: pytest.LogCaptureFixture,
    django_capture_on_commit_callbacks: Callable[..., Any],
) -> None:
    jobs_made.waiting(alice)
    with django_capture_on_commit_callbacks(execute=True):
        look(0, [busy(0)], [foreign(0)])

    fields = vars(next(r for r in caplog.records if vars(r).get("kind") == "JOB_DEFERRED"))
    assert (fields["gpu_util"], fields["seconds"]) == (91, 30)


def test_when_heat_holds_all_gpus_back_the_waiting_jobs_are_deferred(
    alice: User,
    lines: Callable[[], list[str]],
    django_capture_on_commit_callbacks: Callable[..., Any],
) -> None:
    job = jobs_made.waiting(alice)
    hot = gpu(0, temperature_c=88.0, condition=Condition.THROTTLED, condition_reason="Too hot.")
    with django_capture_on_commit_callbacks(execute=True):
        pressure = look(0, [hot])
    assert lines() == [f"System under load, deferring job {job.pk} for 30 s (gpu_temp=88)"]
    assert pressure.closed_gpus == {}


def test_it_tells_when_starts_are_held_back_and_when_they_are_free_again(alice: User) -> None:
    jobs_made.waiting(alice)
    for second in range(0, 60, 5):
        look(second, [busy(0)], [foreign(0)])
    assert kinds() == ["BACKPRESSURE_ACTIVATED"]
    assert "(all GPUs are busy)" in events.recent(1, kind="BACKPRESSURE_ACTIVATED")[0].text
    for second in range(60, 200, 5):
        look(second, [gpu(0)])
    assert kinds() == ["BACKPRESSURE_ACTIVATED", "BACKPRESSURE_RELEASED"]


def test_nobody_is_told_of_deferrals_that_nobody_waits_for() -> None:
    for second in range(0, 60, 5):
        look(second, [busy(0)], [foreign(0)])
    assert kinds() == []


def short(kind: str, text: str) -> None:
    Constraint.objects.create(host="gpubox", kind=kind, text=text, from_at=NOW)


def test_a_host_short_of_memory_makes_all_but_user_initiated_jobs_wait() -> None:
    short("host_memory_use", "The host is busy: memory 84 %.")
    memory = {"memory_total_bytes": 100 * GIB, "memory_available_bytes": 16 * GIB}
    pressure = look(0, [gpu(0)], **memory)
    assert set(pressure.closed) == {NORMAL, BACKGROUND}
    assert pressure.closed[NORMAL].holder == "memory"
    assert "memory above 80 %" in text(pressure.closed[NORMAL])


def test_a_full_disk_lets_nobody_start_and_overloads_the_node() -> None:
    short("data_disk", "No room for logs: /data has 0.1 of 10 GiB left.")
    pressure = look(0, [gpu(0)])
    assert set(pressure.closed) == {NORMAL, BACKGROUND, USER}
    assert kinds() == ["NODE_OVERLOADED"]
    look(5, [gpu(0)])
    assert kinds() == ["NODE_OVERLOADED"]


def test_a_restart_goes_on_where_it_stopped(alice: User) -> None:
    jobs_made.waiting(alice)
    look(0, [busy(0)], [foreign(0)])
    before = throttle_rows.load("gpubox")[0]
    assert before.deferrals[NORMAL].number == 1
    look(5, [busy(0)], [foreign(0)])
    after = throttle_rows.load("gpubox")[0]
    assert after.deferrals[NORMAL].until_t == before.deferrals[NORMAL].until_t
    assert kinds() == ["BACKPRESSURE_ACTIVATED"]


def test_what_another_version_left_is_a_new_beginning() -> None:
    ThrottleState.objects.create(host="gpubox", at=NOW, allowed="{}", memory='{"gpus": 7}')
    assert throttle_rows.throttle("gpubox", at(1), ()) == Throttle()
    assert look(5, [gpu(0)]).closed == {}


def test_the_dispatcher_reads_what_the_controller_wrote(
    django_assert_num_queries: Callable[[int], Any],
) -> None:
    wrote = look(0, [busy(0), gpu(1)], [foreign(0)])
    assert throttle_rows.throttle("gpubox", at(1), ()) == wrote
    with django_assert_num_queries(1):
        assert throttle_rows.throttle("gpubox", at(2), ()) == wrote
    assert throttle_rows.throttle("elsewhere", at(2), ()) == Throttle()


def test_a_silent_controller_holds_nobody_back() -> None:
    look(0, [busy(0)], [foreign(0)])
    assert throttle_rows.throttle("gpubox", at(600), ()) == Throttle()


def hold(job: int, on: int = 0, memory: int | None = 8 * GIB, *, exclusive: bool = False) -> None:
    fact = ClaimFact(
        job_ref=str(job),
        gpu_uuid=gpu_uuid(on),
        owner="alice",
        memory_bytes=memory,
        exclusive=exclusive,
    )
    snapshots.open_claim(fact, "gpubox", NOW)


def sharing(job: int) -> RunningJob:
    return RunningJob(
        id=job,
        owner="alice",
        priority=3,
        requirement=Requirement(memory_bytes=8 * GIB),
        gpu_uuids=(gpu_uuid(0),),
        started_at=NOW,
    )


def test_between_looks_what_came_is_taken_off_the_starts_and_what_went_is_added() -> None:
    hold(7)
    ours = process(1, job_ref="7", sm_pct=50)
    assert look(0, [busy(0, 50), gpu(1)], [ours]).starts == 1
    after = {n: [sharing(job) for job in range(n)] for n in range(4)}
    left = [throttle_rows.throttle("gpubox", at(1), after[n]).starts for n in range(4)]
    assert left == [2, 1, 0, 0]


@pytest.mark.parametrize("mine", [{"exclusive": True}, {"memory": None}])
def test_gpus_that_one_job_has_for_itself_are_no_load(mine: dict[str, Any], alice: User) -> None:
    jobs_made.waiting(alice)
    hold(7, 0, **mine)
    hold(8, 1, **mine)
    own = [process(10 + i, on=i, job_ref=str(7 + i), sm_pct=95) for i in range(2)]
    for second in range(0, 60, 5):
        pressure = look(second, [busy(0, 95), busy(1, 95)], own)
    assert (pressure.closed_gpus, pressure.starts) == ({}, None)
    assert kinds() == []


def test_what_keeps_the_first_jobs_is_known(alice: User) -> None:
    assert bound() == "queue"
    job = jobs_made.waiting(alice)
    for codes, word in (
        (["UtilTarget"], ""),
        ([], ""),
        (["UtilTarget", "GpuTaken"], ""),
        (["GpuMemory"], "memory"),
        (["OwnerPresent"], "owner"),
        (["ShareExceeded"], "other"),
    ):
        Job.objects.filter(pk=job.pk).update(blockers=[{"code": c, "text": ""} for c in codes])
        assert bound() == word


def hogged(hours: float) -> None:
    """Somebody has hogged a GPU for so long."""
    from monitor.models import Incident

    row, _ = Gpu.objects.get_or_create(
        uuid=gpu_uuid(0),
        defaults={
            "host": "gpubox",
            "index": 0,
            "state_since_at": NOW,
            "first_seen_at": NOW,
            "last_seen_at": NOW,
        },
    )
    from monitor.facts.incidents import HOG_RULES

    Incident.objects.create(
        host="gpubox",
        gpu=row,
        rule=sorted(HOG_RULES)[0],
        since_at=NOW - timedelta(hours=hours),
        opened_at=NOW - timedelta(hours=hours),
        last_seen_at=NOW,
        hog_spans=[[(NOW - timedelta(hours=hours)).timestamp(), NOW.timestamp()]],
    )


def test_eight_hours_beside_a_hog_make_it_defensive_and_three_percent_of_thirty() -> None:
    hogged(8)
    pressure = look(0, [busy(0, 95)], [foreign(0, 95)])
    assert ModeState.objects.get().mode == "defensive"
    assert pressure.multipliers == {gpu_uuid(0): 0.1}
    assert 30 * pressure.multipliers[gpu_uuid(0)] == pytest.approx(3)
    assert USER not in pressure.closed_gpus
    assert kinds()[0] == "MODE_CHANGED"


def test_the_mode_counts_on_every_gpu_and_the_hog_on_its_own() -> None:
    hogged(8)
    pressure = look(0, [gpu(0), gpu(1)])
    assert pressure.multipliers == {gpu_uuid(0): 0.1, gpu_uuid(1): 0.1}


def test_an_operator_sets_the_mode_for_a_while_and_it_is_audited() -> None:
    policy = ModePolicy()
    throttle_rows.override("gpubox", Mode.DEFENSIVE, at(3600), by="root", now=NOW)
    assert throttle_rows.judge("gpubox", policy, at(5)) is Mode.DEFENSIVE
    assert kinds() == ["MODE_CHANGED"]
    assert throttle_rows.judge("gpubox", policy, at(3601)) is Mode.COOPERATIVE
    assert kinds() == ["MODE_CHANGED", "MODE_CHANGED"]
    throttle_rows.override("gpubox", None, None, by="root", now=at(4000))
    first, second = reversed(audit.about("mode gpubox"))
    assert (first.by, first.action) == ("root", "MODE_SET")
    assert first.after["mode"] == "defensive"
    assert second.after["mode"] == "automatic"


def test_all_its_policies_can_be_changed_by_operators() -> None:
    known = thresholds.registered()
    assert {"constraints", "pressure", "adaptive", "utilisation", "mode"} <= known.keys()


def test_it_judges_no_old_snapshot() -> None:
    assert ThrottleStep("gpubox").judge(None, NOW) is None
    assert not ThrottleState.objects.exists()


def test_what_an_operator_set_ends_though_nothing_is_read_and_the_rest_stays() -> None:
    ModeState.objects.create(host="gpubox", automatic="defensive", since_at=NOW)
    throttle_rows.override("gpubox", Mode.COOPERATIVE, at(60), by="root", now=NOW)
    ThrottleStep("gpubox").judge(None, at(61))
    row = throttle_rows.mode_of("gpubox")

    assert row is not None
    assert (row.mode, row.override) == ("defensive", "")
    assert row.reason == "The time with overuse is unknown."
