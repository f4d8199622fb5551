"""A step is built anew with each slice of its loop, so models must not depend on it."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import transaction

from monitor.models import Event
from scheduler.facts.jobs import NewJob, Requirement
from scheduler.jobs.rows import changes as job_queue
from scheduler.models import ModelInstance
from tests.builders import GIB
from tests.scheduler.language_models.model_services.model_box import Box, service

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("data")]


def _story(owner: User, *, replaced: bool) -> list[Any]:
    """States and events of a model that boots, serves, and is evicted by a job."""
    box = Box()
    service(min_instances=1, min_residency_s=0)
    states = []
    for number in range(30):
        if number == 10:
            wants = Requirement(gpus=1, memory_bytes=70 * GIB)
            job_queue.submit(NewJob(command="train", requirement=wants), owner, box.now)
        if replaced:
            box.renew()
        box.step(10)
        states.append(list(ModelInstance.objects.order_by("pk").values_list("state", flat=True)))
    return [states, list(Event.objects.order_by("pk").values_list("kind", flat=True))]


def _undone(owner: User, *, replaced: bool) -> list[Any]:
    before = transaction.savepoint()
    story = _story(owner, replaced=replaced)
    transaction.savepoint_rollback(before)
    return story


def test_models_do_not_depend_on_their_steps(alice: User) -> None:
    kept, replaced = _undone(alice, replaced=False), _undone(alice, replaced=True)

    assert kept == replaced
    assert ["ready"] in kept[0]
    assert "MODEL_EVICTED" in kept[1]
