"""A server that fails with its requests is drained and replaced."""

from __future__ import annotations

import pytest

from monitor.models import Event
from scheduler.language_models.model_services import steps
from scheduler.models import ModelInstance
from tests.scheduler.language_models.model_services.model_box import Box, load, ready

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("data")]
REASON = "5 requests in a row failed: its server answered 500."


def test_it_is_drained_with_event_and_reason_and_another_one_boots() -> None:
    box = Box()
    failing = load(box, min_instances=1)

    assert steps.replace_failing(failing.pk, REASON, box.now)
    failing.refresh_from_db()
    assert (failing.state, failing.reason) == ("draining", REASON)
    event = Event.objects.get(kind="MODEL_FAILED")
    assert event.text.startswith(f"Model small failed: {REASON} Next boot in 5 s")

    box.step()
    failing.refresh_from_db()
    assert failing.state == "cooling"
    box.end(failing.job)
    for _ in range(8):
        box.step()
    failing.refresh_from_db()
    assert failing.state == "stopped"
    assert ready(failing.service).pk != failing.pk


def test_the_pause_grows_while_new_instances_fail_with_all_requests() -> None:
    box = Box()
    pauses = []
    instance = load(box, min_instances=1)
    for _ in range(3):
        ModelInstance.objects.filter(pk=instance.pk).update(failures=5)
        steps.replace_failing(instance.pk, REASON, box.now)
        instance.service.refresh_from_db()
        assert instance.service.retry_at is not None
        pauses.append((instance.service.retry_at - box.now).total_seconds())
        box.step()
        instance.refresh_from_db()
        box.end(instance.job)
        for _ in range(6):
            box.step(after_s=10)
        instance = ready(instance.service)

    assert pauses == [5, 10, 20]


def test_an_instance_that_answered_before_begins_with_the_shortest_pause() -> None:
    box = Box()
    instance = load(box)
    ModelInstance.objects.filter(pk=instance.pk).update(tasks_completed=1)
    instance.service.instances.create(
        state="stopped", since=box.now, ended_at=box.now, failures=5, gpu_uuids=[]
    )
    steps.replace_failing(instance.pk, REASON, box.now)

    instance.service.refresh_from_db()
    assert instance.service.failures == 1


def test_an_instance_that_is_not_ready_any_more_stays_as_it_is() -> None:
    box = Box()
    instance = load(box)
    ModelInstance.objects.filter(pk=instance.pk).update(state="cooling")

    assert not steps.replace_failing(instance.pk, REASON, box.now)
