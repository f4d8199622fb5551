from __future__ import annotations

import pytest
from django.db.models import F, QuerySet
from django.utils import timezone

from monitor.models import PeriodicTask, PolicyValues
from monitor.runtime.rows.database import compiled_once

pytestmark = pytest.mark.django_db
asked = []


@compiled_once
def called(name: str) -> QuerySet[PeriodicTask]:
    asked.append(name)
    return PeriodicTask.objects.filter(name=name, done_at=None)


@compiled_once
def changed() -> QuerySet[PolicyValues]:
    return PolicyValues.objects.order_by("name")


@compiled_once
def annotated() -> QuerySet[PeriodicTask]:
    return PeriodicTask.objects.annotate(other=F("name")).only("queued_at").order_by("name")[:2]


def test_it_tells_what_is_there_now_though_it_is_put_together_once() -> None:
    asked.clear()
    before = called("a")
    PeriodicTask.objects.create(name="a", queued_at=timezone.now())
    after = called("a")

    assert (before, [row.name for row in after]) == ([], ["a"])
    assert asked == ["a"]


def test_each_argument_has_an_answer_of_its_own() -> None:
    PeriodicTask.objects.create(name="b", queued_at=timezone.now())

    assert [row.name for row in called("b")] == ["b"]
    assert called("c") == []


def test_its_rows_are_as_django_reads_them() -> None:
    PolicyValues.objects.create(name="hogs", values={"percent": 80.0, "on": True})
    at = timezone.now()
    PeriodicTask.objects.create(name="d", queued_at=at)

    assert changed()[0].values == {"percent": 80.0, "on": True}
    assert called("d")[0].queued_at == at


def test_a_column_that_was_left_out_is_read_when_it_is_wanted() -> None:
    at = timezone.now()
    for name in ("g", "e", "f"):
        PeriodicTask.objects.create(name=name, queued_at=at)

    rows = annotated()

    assert [(row.__dict__["other"], row.queued_at) for row in rows] == [("e", at), ("f", at)]
    assert rows[0].get_deferred_fields() >= {"done_at"}
    assert rows[0].done_at is None
