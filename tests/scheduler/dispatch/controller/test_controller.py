from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from django.db import transaction
from django_q.models import OrmQ

from monitor.facts.readings import Snapshot
from monitor.gpus.rows import snapshot as snapshots
from monitor.journal.rows import events
from monitor.models import Constraint, PeriodicTask
from scheduler.dispatch import tasks as controller_tasks
from scheduler.dispatch.steps.controller import ConstraintWatch, Controller, Part
from tests.builders import GIB, NOW, gpu, host, snapshot

pytestmark = pytest.mark.django_db


def at(second: float) -> datetime:
    return NOW + timedelta(seconds=second)


def controller(queue: list[str] | None = None, *others: Part) -> Controller:
    queued = queue if queue is not None else []
    parts = (*others, ConstraintWatch("gpubox", "/data"))
    return Controller(transaction.atomic, "gpubox", queued.append, parts)


class Broken:
    """A part that writes an event, and fails."""

    name = "broken"

    def judge(self, snapshot: Snapshot | None, now: datetime) -> object:
        events.add("HALF_DONE", "taken back", now=now)
        raise ValueError("no such thing")


def latest(second: float, used_pct: float) -> Snapshot:
    """The host's memory is used so far."""
    memory = {
        "memory_total_bytes": 100 * GIB,
        "memory_available_bytes": int((100 - used_pct) * GIB),
    }
    shot = snapshot([gpu(0)], seq=int(second) + 1, at=at(second), host=host(**memory))
    snapshots.record(shot)
    return shot


def kinds() -> list[str]:
    return [event.kind for event in reversed(events.recent(100))]


def test_it_tells_when_something_begins_and_ends_and_nothing_in_between() -> None:
    running = controller()
    for second, used in enumerate([80, 81, 90, 78, 76, 75, 70]):
        latest(second, used)
        running.step(at(second))
    assert kinds() == ["RESOURCE_CONSTRAINT", "RESOURCE_CONSTRAINT_OVER"]
    row = Constraint.objects.get()
    assert (row.from_at, row.until_at) == (at(1), at(5))


def test_a_restart_forgets_nothing_and_tells_nothing_twice() -> None:
    latest(0, 90)
    controller().step(at(0))
    latest(5, 78)
    controller().step(at(5))
    assert kinds() == ["RESOURCE_CONSTRAINT"]
    latest(10, 74)
    controller().step(at(10))
    assert Constraint.objects.filter(until_at__isnull=True).count() == 0


def test_it_judges_no_old_snapshot() -> None:
    latest(0, 90)
    assert controller().step(at(60)).results["constraints"] is None
    assert kinds() == []


def test_it_waits_for_a_first_snapshot() -> None:
    assert controller().step(NOW).results["constraints"] is None


def test_it_has_rows_added_up_each_minute_and_old_ones_pruned_every_few() -> None:
    queue: list[str] = []
    for second in range(0, 620, 5):
        controller(queue).step(at(second))
    assert (queue.count("roll_up"), queue.count("prune")) == (11, 3)
    assert PeriodicTask.objects.get(name="prune").queued_at == at(600)


def test_the_settings_build_it_and_its_chores_are_tasks() -> None:
    assert controller_tasks.build_controller(transaction.atomic).step(NOW).queued == (
        "roll_up",
        "prune",
        "find_patterns",
    )
    assert {task.task["func"] for task in OrmQ.objects.all()} == {
        "monitor.tasks.roll_up",
        "monitor.tasks.prune",
        "monitor.tasks.find_patterns",
        "scheduler.tasks.clear_files",
    }


def test_a_part_that_fails_takes_back_what_it_wrote_and_keeps_no_other_from_judging() -> None:
    latest(0, 90)
    findings = controller(None, Broken()).step(at(0)).results
    assert isinstance(findings["broken"], ValueError)
    assert kinds() == ["RESOURCE_CONSTRAINT"]


def test_a_part_that_goes_on_failing_in_the_same_way_is_reported_once_over_all_slices(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for second in (0, 5, 10):
        controller(None, Broken()).step(at(second))
    assert [r.message for r in caplog.records if "broken" in r.message] == [
        "controller: broken failed: ValueError: no such thing"
    ]
