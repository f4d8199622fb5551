"""Statements that are compiled once do what the same call of a QuerySet does."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import User
from django.utils import timezone

from monitor.models import Event
from monitor.runtime.rows.prepared import MARK, TEXT_MARK, PreparedQuery, insert_row, update_rows
from tests.builders import NOW

pytestmark = pytest.mark.django_db


def event(text: str = "one") -> Event:
    return Event(at=NOW, kind="JOB_STARTED", text=text, owner="alice")


def test_an_inserted_row_is_read_back_as_it_was() -> None:
    row = insert_row(event())
    assert row.pk is not None
    assert Event.objects.values().get() == Event.objects.filter(pk=row.pk).values().get()
    assert (Event.objects.get().at, Event.objects.get().text) == (NOW, "one")


def test_an_update_changes_the_rows_that_a_filter_would() -> None:
    first, second = insert_row(event()), insert_row(event("two"))
    later = timezone.now()
    assert update_rows(Event, {"pk": first.pk, "text": "two"}, at=later) == 0
    assert update_rows(Event, {"pk": second.pk, "text": ("one", "two")}, at=later) == 1
    assert list(Event.objects.order_by("pk").values_list("at", flat=True)) == [NOW, later]


def test_none_asks_for_null() -> None:
    User.objects.create(username="alice")
    User.objects.create(username="bob", last_login=NOW)
    assert update_rows(User, {"last_login": None}, first_name="new") == 1
    assert User.objects.get(first_name="new").username == "alice"


def test_a_prepared_query_reads_the_rows_of_each_key_anew() -> None:
    first, second = insert_row(event()), insert_row(event("two"))
    query = PreparedQuery(lambda number: Event.objects.filter(pk=number), MARK)
    assert [row.text for key in (first.pk, second.pk) for row in query.rows(key)] == ["one", "two"]
    Event.objects.filter(pk=first.pk).update(text="changed")
    assert [row.text for row in query.rows(first.pk)] == ["changed"]
    assert query.rows(0) == []


def test_a_prepared_query_may_have_a_text_as_its_key() -> None:
    insert_row(event())
    query = PreparedQuery(lambda text: Event.objects.filter(text=text), TEXT_MARK)
    assert [len(query.rows(text)) for text in ("one", "two")] == [1, 0]
