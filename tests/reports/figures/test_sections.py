from __future__ import annotations

from datetime import timedelta

import pytest
from django.contrib.auth.models import Group, User

from monitor.owners.policy import Viewer
from reports.figures import rows
from reports.figures.facts import Table
from reports.figures.policy import periods
from scheduler.models import Batch, ModelUse
from tests.builders import NOW

pytestmark = pytest.mark.django_db
OPERATOR = Viewer("root", operator=True)
PERIOD = periods.parse("24h", "", "", "UTC", NOW)


def asked(owner: str, hours_ago: float, requests: int = 10) -> None:
    at = (NOW - timedelta(hours=hours_ago)).replace(minute=0, second=0, microsecond=0)
    ModelUse.objects.create(
        hour_at=at, model="llama", owner=owner, requests=requests, failed=1, prompt_tokens=100
    )


def batch(owner: User, hours_ago: float, ended_hours_ago: float | None = None) -> Batch:
    ended = None if ended_hours_ago is None else NOW - timedelta(hours=ended_hours_ago)
    return Batch.objects.create(
        owner=owner,
        name="transcripts",
        total_items=125,
        completed=45,
        created_at=NOW - timedelta(hours=hours_ago),
        ended_at=ended,
    )


def lines_of(table: Table | None) -> tuple[tuple[object, ...], ...]:
    assert table is not None
    return table.rows


def test_requests_to_models_are_added_up_over_users_and_hours_of_the_period() -> None:
    asked("alice", 2)
    asked("alice", 3)
    asked("bob", 2)
    asked("bob", 30)

    table = rows.models(PERIOD, periods.scope("all"))

    assert lines_of(table) == (("llama", 30, 3, 0, 300, 0),)


def test_requests_of_a_user_or_a_group_are_theirs_alone(alice: User) -> None:
    asked("alice", 2)
    asked("bob", 2)
    alice.groups.add(Group.objects.create(name="vision"))

    for scope in ("user:alice", "group:vision"):
        table = rows.models(PERIOD, periods.scope(scope))
        assert lines_of(table)[0][1] == 10


def test_a_report_without_requests_or_batches_has_no_such_section() -> None:
    everything = periods.scope("all")

    assert rows.models(PERIOD, everything) is None
    assert rows.batches(PERIOD, everything, OPERATOR) is None


def test_a_gpu_has_neither_requests_nor_batches(alice: User) -> None:
    asked("alice", 2)
    batch(alice, 2)

    gpu = periods.scope("gpu:GPU-1")

    assert rows.models(PERIOD, gpu) is None
    assert rows.batches(PERIOD, gpu, OPERATOR) is None


def test_batches_that_ran_in_the_period_are_listed_newest_first(alice: User) -> None:
    batch(alice, 90, ended_hours_ago=80)
    old = batch(alice, 90, ended_hours_ago=1)
    running = batch(alice, 5)

    table = rows.batches(PERIOD, periods.scope("all"), OPERATOR)

    assert [row[0] for row in lines_of(table)] == [
        f"{each.pk} transcripts" for each in (running, old)
    ]


def test_a_user_sees_no_batches_of_others(alice: User, bob: User) -> None:
    batch(alice, 2)
    batch(bob, 2)

    table = rows.batches(PERIOD, periods.scope("all"), Viewer("alice"))

    assert [row[1] for row in lines_of(table)] == ["alice"]
