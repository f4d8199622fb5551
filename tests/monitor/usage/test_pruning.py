from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from django.db import IntegrityError, connection
from django.db.models import Model, QuerySet
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from monitor import tasks
from monitor.gpus.rows import snapshot as snapshots
from monitor.gpus.sampling.probes.simulated import Scenario
from monitor.journal.rows import events
from monitor.models import (
    Event,
    Gpu,
    GpuHour,
    GpuMinute,
    HostMinute,
    HostSample,
    PeriodicTask,
    PolicyValues,
    ProcessHour,
    ProcessMinute,
    ProcessUse,
    Sample,
)
from monitor.runtime.rows import periodic_tasks
from monitor.usage.rows import rollups
from monitor.usage.rows.rollups import RetentionPeriods
from tests.monitor.made_readings import NOW
from tests.monitor.past import NOTHING, process_use

pytestmark = pytest.mark.django_db
KEEP = RetentionPeriods(raw=timedelta(hours=2))


def history(hours: float, every_s: int = 60) -> None:
    scenario = Scenario(gpus=2)
    count = int(hours * 3600 / every_s)
    past = (NOW - timedelta(seconds=every_s * i) for i in range(count))
    snapshots.record_history(scenario.snapshot(at, "box") for at in past)
    rollups.roll_up(NOW + timedelta(minutes=2))


def test_it_keeps_two_hours_of_samples() -> None:
    history(hours=3)
    gone = rollups.prune(KEEP, NOW)
    assert (gone["sample"], gone["hostsample"]) == (2 * 59, 59)
    oldest = NOW.timestamp() - 2 * 3600
    assert Sample.objects.filter(t__lt=oldest).count() == 0
    assert Sample.objects.count() == 2 * 121
    assert HostSample.objects.count() == 121


def test_it_deletes_a_few_rows_at_a_time() -> None:
    history(hours=3)
    with CaptureQueriesContext(
        connection,
    ) as queries:
        rollups.prune(KEEP, NOW, chunk=20)
    deletes = [q["sql"] for q in queries if q["sql"].startswith('DELETE FROM "monitor_sample"')]
    assert len(deletes) == 2 * 3
    assert all("LIMIT 20" in sql for sql in deletes)


def test_it_keeps_events_for_ninety_days_and_passing_states_for_seven() -> None:
    for days in (1, 8, 91):
        at = NOW - timedelta(days=days)
        events.add("GPU_STATE_CHANGED", f"{days}", now=at)
        events.add("GPU_STATE_CHANGED", f"{days} failing", now=at, severity="warning")
        events.add("JOB_FINISHED", f"{days} job", now=at)
    rollups.prune(KEEP, NOW)
    texts = set(Event.objects.values_list("text", flat=True))
    assert texts == {"1", "1 failing", "1 job", "8 failing", "8 job"}


def test_the_policy_says_for_how_long_events_are_kept() -> None:
    for days in (1, 3):
        events.add("JOB_FINISHED", f"{days}", now=timezone.now() - timedelta(days=days))
    PolicyValues.objects.create(name="retention", values={"event_days": 2})

    tasks.prune()

    assert list(Event.objects.values_list("text", flat=True)) == ["1"]


def test_it_forgets_a_host_that_was_silent_for_a_week() -> None:
    for days, host in ((1, "asleep"), (8, "gone")):
        snapshots.record(Scenario(gpus=1).snapshot(NOW - timedelta(days=days), host))
    rollups.prune(KEEP, NOW)
    assert [shot.host.name for shot in snapshots.newest_all()] == ["asleep"]


def test_pruning_again_finds_nothing() -> None:
    history(hours=3)
    rollups.prune(KEEP, NOW)
    assert not any(rollups.prune(KEEP, NOW).values())


def test_a_chore_is_due_once_in_its_time_for_one_caller() -> None:
    every = timedelta(minutes=5)
    due = [
        periodic_tasks.due("x", every, NOW + timedelta(seconds=s)) for s in (0, 0, 299, 300, 301)
    ]
    assert due == [True, False, False, True, False]


def test_the_task_prunes_as_the_settings_say_and_notes_it() -> None:
    history(hours=1)
    periodic_tasks.due("prune", timedelta(minutes=5), NOW)
    gone = tasks.prune()
    assert gone is not None
    assert gone["sample"] == 2 * 60
    assert PeriodicTask.objects.get(name="prune").done_at is not None


def test_it_keeps_samples_until_they_are_added_up_but_not_for_ever() -> None:
    scenario = Scenario(gpus=1)
    for hours in (3, 4, 27):
        snapshots.record(scenario.snapshot(NOW - timedelta(hours=hours), "box"))
    assert rollups.prune(KEEP, NOW)["sample"] == 1
    rollups.roll_up(NOW)
    assert rollups.prune(KEEP, NOW)["sample"] == 2
    assert GpuMinute.objects.count() == 2


def test_it_never_leaves_a_part_of_a_minute() -> None:
    history(hours=3, every_s=20)
    rollups.prune(KEEP, NOW + timedelta(seconds=37))
    first = Sample.objects.order_by("t").values_list("t", flat=True).first()
    assert first == NOW.timestamp() - 2 * 3600


def test_it_keeps_minutes_and_hours_for_their_retention() -> None:
    snapshots.record(Scenario(gpus=1).snapshot(NOW, "box"))
    gpu = Gpu.objects.get()
    for days in (1, 89, 91, 729, 731):
        t = int((NOW - timedelta(days=days)).timestamp())
        use = process_use(gpu, NOW - timedelta(days=days), pid=days)
        for minute in (GpuMinute, GpuHour):
            minute.objects.create(gpu=gpu, t=t, **NOTHING)
        ProcessMinute.objects.create(use=use, t=t, sm_s=1)
        ProcessHour.objects.create(use=use, t=t, sm_s=1, held_s=1, known_s=1, memory_byte_s=1)
    rollups.prune(KEEP, NOW)
    assert (GpuMinute.objects.count(), GpuHour.objects.count()) == (2, 4)
    assert (ProcessMinute.objects.count(), ProcessHour.objects.count()) == (2, 4)
    assert set(ProcessUse.objects.values_list("pid", flat=True)) == {1, 89, 91, 729}


def test_a_table_that_cannot_be_pruned_keeps_no_other_from_being_pruned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Event.objects.create(at=NOW - timedelta(days=100), kind="OLD", text="old")
    delete = rollups._delete

    def odd(rows: QuerySet[Model], chunk: int) -> int:
        if rows.model is not Event:
            raise IntegrityError("still referred to")
        return delete(rows, chunk)

    monkeypatch.setattr(rollups, "_delete", odd)

    assert rollups.prune(rollups.RetentionPeriods(raw=timedelta(hours=2)), NOW) == {"event": 1}


def test_a_gpu_that_cannot_be_added_up_keeps_no_other_from_being_added_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    minutes = rollups._minutes
    scenario = Scenario(gpus=2)
    past = (NOW - timedelta(seconds=second) for second in range(300))
    snapshots.record_history(scenario.snapshot(at, "box") for at in past)
    odd_gpu, good_gpu = Gpu.objects.order_by("uuid").values_list("uuid", flat=True)

    def odd(ladder: rollups.RollupLevels, key: str, since: int, until: int) -> int:
        if key == odd_gpu:
            raise OverflowError("an odd figure")
        return minutes(ladder, key, since, until)

    monkeypatch.setattr(rollups, "_minutes", odd)
    rollups.roll_up(NOW + timedelta(minutes=2))

    assert set(GpuMinute.objects.values_list("gpu_id", flat=True)) == {good_gpu}
    assert HostMinute.objects.exists()


def test_one_long_chore_runs_at_a_time_and_the_others_become_due_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    every, now = timedelta(minutes=5), timezone.now()
    for name in ("prune", "roll_up", "find_patterns"):
        assert periodic_tasks.due(name, every, now)
    meanwhile: list[object] = []
    roll_up = rollups.roll_up

    def long(at: datetime) -> dict[str, int]:
        meanwhile.extend((tasks.prune(), tasks.find_patterns()))
        return roll_up(at)

    monkeypatch.setattr(rollups, "roll_up", long)

    assert tasks.roll_up() is not None
    assert meanwhile == [None, None]
    assert not periodic_tasks.due("roll_up", every, now)
    assert periodic_tasks.due("prune", every, now)
    assert tasks.prune() is not None
