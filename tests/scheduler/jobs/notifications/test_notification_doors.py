"""The page and REST of notification settings."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from django.contrib.auth.models import User
from django.test import Client

from monitor.models import Channel
from scheduler.jobs.notifications import step
from scheduler.models import Job

pytestmark = pytest.mark.django_db
AsUser = Callable[[User], Client]
PAGE, REST = "/account/notifications/", "/api/account/notifications/"
HOOK = "jsons://example.org/s3cret-hook"


@pytest.fixture
def browser(alice: User, as_user: AsUser) -> Client:
    return as_user(alice)


def test_the_page_saves_what_a_user_wants_to_be_told(browser: Client, alice: User) -> None:
    answer = browser.post(PAGE, {"kinds": ["finished"], "by_mail": "on", "service": HOOK})

    assert (answer.status_code, answer["Location"]) == (302, PAGE)
    row = step.settings_of(alice)
    assert (row.kinds, row.by_mail) == (["finished"], True)
    assert row.channel is not None


def test_the_page_never_shows_the_address(browser: Client) -> None:
    browser.post(PAGE, {"service": HOOK})

    html = browser.get(PAGE).content.decode()
    assert "s3cret" not in html
    assert "Stored service" in html


def test_a_wrong_address_is_refused_with_the_services_there_are(browser: Client) -> None:
    answer = browser.post(PAGE, {"service": "dbus://"})

    assert answer.status_code == 422
    assert "discord, slack" in answer.content.decode()
    assert not Channel.objects.exists()


def test_the_page_says_why_mails_do_not_arrive(browser: Client) -> None:
    assert "No operator has set up a mail channel" in browser.get(PAGE).content.decode()


def test_rest_changes_only_what_is_given(browser: Client, alice: User) -> None:
    browser.put(REST, {"kinds": ["failed"], "by_mail": False}, "application/json")

    answer = browser.put(REST, {"service": HOOK}, "application/json").json()

    assert (answer["kinds"], answer["by_mail"]) == (["failed"], False)
    assert (answer["service"], "s3cret" in str(answer)) == ("JSON", False)
    assert browser.get(REST).json() == answer


@pytest.mark.parametrize(
    ("body", "field"), [({"kinds": ["always"]}, "kinds"), ({"service": "syslog://"}, "service")]
)
def test_rest_names_the_field_that_is_wrong(browser: Client, body: object, field: str) -> None:
    answer = browser.put(REST, body, "application/json")

    assert answer.status_code == 422
    assert field in str(answer.json())


def test_a_job_is_submitted_with_notices_of_its_own(browser: Client) -> None:
    body = {"command": "true", "gpus": 0, "notify": "failed, preempted"}

    assert browser.post("/api/jobs/", body, "application/json").status_code == 201
    assert Job.objects.get().notify == ["failed", "preempted"]
