from __future__ import annotations

from datetime import timedelta

import pytest
from django.contrib.auth.models import User

from monitor.models import ApiToken
from monitor.owners import rows
from tests.builders import NOW

pytestmark = pytest.mark.django_db
MINUTE = timedelta(minutes=1)


def test_a_token_stands_for_its_user(alice: User) -> None:
    _, text = rows.create_token(alice, NOW)

    assert rows.authenticate(text, NOW) == alice


def test_it_keeps_no_token_only_a_digest(alice: User) -> None:
    row, text = rows.create_token(alice, NOW, name="laptop")

    assert text not in str(ApiToken.objects.filter(pk=row.pk).values().get())
    assert text.startswith(row.prefix)
    assert len(text) > len(row.prefix) + 30


@pytest.mark.parametrize("text", ["", "gpc_", "gpc_unknown", "\ud800", "é" * 9000])
def test_what_is_no_token_is_refused(alice: User, text: str) -> None:
    assert rows.authenticate(text, NOW) is None


def test_it_refuses_an_expired_token(alice: User) -> None:
    _, text = rows.create_token(alice, NOW, lives=MINUTE)

    assert rows.authenticate(text, NOW + MINUTE - timedelta(seconds=1)) == alice
    assert rows.authenticate(text, NOW + MINUTE) is None


def test_it_refuses_who_may_not_log_in(alice: User) -> None:
    _, text = rows.create_token(alice, NOW)
    User.objects.filter(pk=alice.pk).update(is_active=False)

    assert rows.authenticate(text, NOW) is None


def test_it_notes_the_use_at_most_each_minute(alice: User) -> None:
    row, text = rows.create_token(alice, NOW)
    for seconds in (0, 30, 59):
        rows.authenticate(text, NOW + timedelta(seconds=seconds))
    row.refresh_from_db()
    assert row.last_used_at == NOW

    rows.authenticate(text, NOW + MINUTE)
    row.refresh_from_db()
    assert row.last_used_at == NOW + MINUTE
