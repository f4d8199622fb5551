from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from monitor import chores, events, pruning, rollups, store, tasks
from monitor.models import (
    Chore,
    Event,
    Gpu,
    GpuHour,
    GpuMinute,
    HostSample,
    PolicyValues,
    ProcessHour,
    ProcessMinute,
    ProcessUse,
    Sample,
)
from monitor.probes.scenario import Scenario
from monitor.pruning import Keep
from tests.monitor.facts import NOW
from tests.monitor.past import NOTHING, process_use

pytestmark = pytest.mark.django_db
KEEP = Keep(raw=timedelta(hours=2))


def history(hours: float, every_s: int = 60) -> None:
    scenario = Scenario(gpus=2)
    count = int(hours * 3600 / every_s)
    past = (NOW - timedelta(seconds=every_s * i) for i in range(count))
    store.record_history(scenario.snapshot(at, "box") for at in past)
    rollups.roll_up(NOW + timedelta(minutes=2))


def test_it_keeps_two_hours_of_samples() -> None:
    history(hours=3)
    gone = pruning.prune(KEEP, NOW)
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
        pruning.prune(KEEP, NOW, chunk=20)
    deletes = [q["sql"] for q in queries if q["sql"].startswith('DELETE FROM "monitor_sample"')]
    assert len(deletes) == 2 * 3
    assert all("LIMIT 20" in sql for sql in deletes)


def test_it_keeps_events_for_ninety_days_and_passing_states_for_seven() -> None:
    for days in (1, 8, 91):
        at = NOW - timedelta(days=days)
        events.add("GPU_STATE_CHANGED", f"{days}", now=at)
        events.add("GPU_STATE_CHANGED", f"{days} failing", now=at, severity="warning")
        events.add("JOB_FINISHED", f"{days} job", now=at)
    pruning.prune(KEEP, NOW)
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
        store.record(Scenario(gpus=1).snapshot(NOW - timedelta(days=days), host))
    pruning.prune(KEEP, NOW)
    assert [shot.host.name for shot in store.newest_all()] == ["asleep"]


def test_pruning_again_finds_nothing() -> None:
    history(hours=3)
    pruning.prune(KEEP, NOW)
    assert not any(pruning.prune(KEEP, NOW).values())


def test_a_chore_is_due_once_in_its_time_for_one_caller() -> None:
    every = timedelta(minutes=5)
    due = [chores.due("x", every, NOW + timedelta(seconds=s)) for s in (0, 0, 299, 300, 301)]
    assert due == [True, False, False, True, False]


def test_the_task_prunes_as_the_settings_say_and_notes_it() -> None:
    history(hours=1)
    chores.due("prune", timedelta(minutes=5), NOW)
    assert tasks.prune()["sample"] == 2 * 60
    assert Chore.objects.get().done_at is not None


def test_it_keeps_samples_until_they_are_added_up_but_not_for_ever() -> None:
    scenario = Scenario(gpus=1)
    for hours in (3, 4, 27):
        store.record(scenario.snapshot(NOW - timedelta(hours=hours), "box"))
    assert pruning.prune(KEEP, NOW)["sample"] == 1
    rollups.roll_up(NOW)
    assert pruning.prune(KEEP, NOW)["sample"] == 2
    assert GpuMinute.objects.count() == 2


def test_it_never_leaves_a_part_of_a_minute() -> None:
    history(hours=3, every_s=20)
    pruning.prune(KEEP, NOW + timedelta(seconds=37))
    first = Sample.objects.order_by("t").values_list("t", flat=True).first()
    assert first == NOW.timestamp() - 2 * 3600


def test_it_keeps_minutes_and_hours_as_long_as_it_is_told() -> None:
    store.record(Scenario(gpus=1).snapshot(NOW, "box"))
    gpu = Gpu.objects.get()
    for days in (1, 89, 91, 729, 731):
        t = int((NOW - timedelta(days=days)).timestamp())
        use = process_use(gpu, NOW - timedelta(days=days), pid=days)
        for minute in (GpuMinute, GpuHour):
            minute.objects.create(gpu=gpu, t=t, **NOTHING)
        ProcessMinute.objects.create(use=use, t=t, sm_s=1)
        ProcessHour.objects.create(use=use, t=t, sm_s=1, held_s=1, known_s=1, memory_byte_s=1)
    pruning.prune(KEEP, NOW)
    assert (GpuMinute.objects.count(), GpuHour.objects.count()) == (2, 4)
    assert (ProcessMinute.objects.count(), ProcessHour.objects.count()) == (2, 4)
    assert set(ProcessUse.objects.values_list("pid", flat=True)) == {1, 89, 91, 729}
