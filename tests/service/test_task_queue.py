"""The queue of tasks gives what django-q2's own queue gives."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from django_q.brokers import get_broker
from django_q.conf import Conf
from django_q.models import OrmQ

from gpucoord_site.service.task_queue import TaskQueue

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Conf, "POLL", 0)


def test_the_service_uses_it() -> None:
    assert isinstance(get_broker(), TaskQueue)


def test_a_task_is_taken_once() -> None:
    queue = TaskQueue("box")
    number = queue.enqueue("a task")
    assert queue.dequeue() == [(number, "a task")]
    assert queue.dequeue() is None


def test_a_task_that_was_taken_returns_when_its_lock_has_expired() -> None:
    queue = TaskQueue("box")
    number = queue.enqueue("a task")
    queue.dequeue()
    OrmQ.objects.update(lock=timezone.now() - timedelta(seconds=1))
    assert queue.dequeue() == [(number, "a task")]


def test_tasks_of_other_queues_stay_where_they_are() -> None:
    TaskQueue("another box").enqueue("a task")
    assert TaskQueue("box").dequeue() is None


def test_an_empty_queue_costs_one_statement() -> None:
    with CaptureQueriesContext(connection) as asked:
        TaskQueue("box").dequeue()
    assert len(asked) == 1
