"""The pages of model services."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from monitor.journal.rows import events
from scheduler.models import ModelInstance, ModelService

pytestmark = pytest.mark.django_db
AsUser = Callable[[User], Client]


@pytest.fixture
def small() -> ModelService:
    return ModelService.objects.create(name="qwen2.5:7b", argv=["serve", "--key", "{port}"])


def test_the_list_shows_when_a_model_is_ready(
    small: ModelService, alice: User, as_user: AsUser
) -> None:
    now = timezone.now()
    ModelInstance.objects.create(
        service=small, since=now, started_boot_at=now, expected_ready_at=now + timedelta(seconds=85)
    )

    html = as_user(alice).get("/models/").content.decode()

    assert "qwen2.5:7b" in html
    assert "ready in ~8" in html


@pytest.mark.parametrize(
    ("changes", "answer"),
    [
        ({"state": "ready", "in_flight": 1}, "<td>at once</td>"),
        ({"state": "ready", "in_flight": 2}, "<td>after earlier requests</td>"),
        ({"state": "cooling"}, "–"),
        (None, "of loading</td>"),
    ],
)
def test_the_list_says_when_an_answer_would_begin(
    small: ModelService, alice: User, as_user: AsUser, changes: Any, answer: str
) -> None:
    ModelService.objects.update(concurrency=2)
    if changes:
        ModelInstance.objects.create(service=small, since=timezone.now(), **changes)
    assert answer in as_user(alice).get("/models/").content.decode()


def test_without_services_the_list_says_who_adds_them(alice: User, as_user: AsUser) -> None:
    assert "Operators add them." in as_user(alice).get("/models/").content.decode()


def test_the_command_is_shown_to_operators_alone(
    small: ModelService, alice: User, root: User, as_user: AsUser
) -> None:
    pages = [as_user(user).get("/models/qwen2.5:7b/").content.decode() for user in (alice, root)]

    assert ["serve --key" in html for html in pages] == [False, True]
    assert ["Start an instance" in html for html in pages] == [False, True]


def test_the_page_shows_the_events_of_its_model_alone(
    small: ModelService, alice: User, as_user: AsUser
) -> None:
    events.add("MODEL_READY", "Model qwen2.5:7b is ready after 85.0 s.", now=timezone.now())
    events.add("MODEL_READY", "Model other is ready after 3.0 s.", now=timezone.now())

    html = as_user(alice).get("/models/qwen2.5:7b/").content.decode()

    assert "ready after 85.0 s" in html
    assert "ready after 3.0 s" not in html


def test_an_operator_starts_and_unloads_it(
    small: ModelService, root: User, as_user: AsUser
) -> None:
    browser = as_user(root)

    started = browser.post("/models/qwen2.5:7b/boot/", follow=True).content.decode()
    small.refresh_from_db()
    assert "is requested" in started
    assert small.wanted_at is not None
    browser.post("/models/qwen2.5:7b/unload/")
    small.refresh_from_db()
    assert small.wanted_at is None


def test_other_users_may_not(small: ModelService, alice: User, as_user: AsUser) -> None:
    browser = as_user(alice)

    assert browser.post("/models/qwen2.5:7b/boot/").status_code == 403
    assert browser.post("/models/qwen2.5:7b/unload/").status_code == 403
    assert browser.get("/models/none/").status_code == 404
