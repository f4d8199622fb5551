"""Rows of waiting prompts: many prompts and users cost a few statements."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test.utils import CaptureQueriesContext

from scheduler.facts.language_models import NewPrompt
from scheduler.language_models.prompts import rows
from scheduler.models import Prompt
from tests.builders import NOW

pytestmark = pytest.mark.django_db
TEN = 10


def _prompt(owner: User, priority: int = 3) -> Prompt:
    message = {"role": "user", "content": "Hello"}
    new = NewPrompt(model="m", messages=(message,), priority=priority)
    return rows.create(new, owner, NOW)


def _statements(action: Callable[[], object]) -> int:
    with CaptureQueriesContext(
        connection,
    ) as taken:
        action()
    return len(taken)


def test_of_each_user_the_first_prompts_by_priority_and_creation_are_found(
    alice: User, bob: User
) -> None:
    many = [_prompt(alice) for _ in range(TEN)]
    urgent, late = _prompt(alice, priority=5), _prompt(bob)

    found = [row.pk for row in rows.waiting(4)]
    assert sorted(found) == sorted([urgent.pk, many[0].pk, late.pk])


def test_prompts_of_many_users_are_found_in_two_statements() -> None:
    for number in range(TEN):
        _prompt(User.objects.create_user(f"user{number}"))

    assert _statements(lambda: rows.waiting(200)) == 2
    assert len(rows.waiting(200)) == TEN


def test_the_reasons_of_many_prompts_are_stored_in_one_statement(alice: User) -> None:
    waiting = [_prompt(alice) for _ in range(TEN)]
    gone = waiting.pop()
    assert rows.mark_cancelled(gone, "alice", NOW)
    reasons = {row.pk: f"position {place}" for place, row in enumerate([*waiting, gone])}

    assert _statements(lambda: rows.explain(reasons)) == 1
    stored = dict(Prompt.objects.values_list("pk", "waits_for"))
    assert stored == {**reasons, gone.pk: ""}
