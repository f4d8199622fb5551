"""Statements that are compiled once do what the same call of a QuerySet does."""

from __future__ import annotations

from datetime import timedelta

import django
import pytest
from django.contrib.auth.models import User
from django.utils import timezone

from monitor.models import Counter, Event, LatestSnapshot
from monitor.runtime.rows.database import (
    MARK,
    TEXT_MARK,
    TIME_MARK,
    PreparedQuery,
    insert_row,
    update_rows,
    upsert_rows,
)
from tests.builders import NOW

pytestmark = pytest.mark.django_db


def test_this_django_is_one_that_the_compiled_statements_were_checked_with() -> None:
    # They use its SQL compiler, which may change with each version.
    assert django.VERSION[:2] in {(5, 2)}


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


def test_a_prepared_query_may_have_a_time_as_its_key() -> None:
    insert_row(event())
    query = PreparedQuery(lambda at: Event.objects.filter(at__gt=at), TIME_MARK)
    times = (NOW - timedelta(seconds=1), NOW)
    assert [len(query.rows(at)) for at in times] == [1, 0]


def test_rows_are_added_or_changed_in_one_statement() -> None:
    def tally(subject: str, value: float) -> Counter:
        return Counter(name="events", host="box", subject=subject, value=value)

    tally("one", 1).save()
    upsert_rows([tally("one", 5), tally("two", 2)], ("name", "host", "subject"), ("value",))
    stored = Counter.objects.order_by("subject").values_list("subject", "value")
    assert list(stored) == [("one", 5.0), ("two", 2.0)]


def test_fields_that_are_not_updated_stay_as_they_were() -> None:
    def latest(seq: int, carry: str) -> LatestSnapshot:
        return LatestSnapshot(host="box", seq=seq, at=NOW, body="{}", carry=carry)

    upsert_rows([latest(1, "first")], ("host",), ("seq",))
    upsert_rows([latest(2, "second")], ("host",), ("seq",))
    assert LatestSnapshot.objects.values_list("seq", "carry", "at").get() == (2, "first", NOW)
