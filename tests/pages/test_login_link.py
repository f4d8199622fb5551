from __future__ import annotations

from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from monitor.models import AuditEntry, LoginLink
from monitor.owners import rows

pytestmark = pytest.mark.django_db


def link(user: User, age_s: float = 0.0) -> str:
    return f"/login/link/{rows.create_link(user, timezone.now() - timedelta(seconds=age_s))}/"


def test_a_login_link_opens_the_page_as_its_user(client: Client, alice: User) -> None:
    answer = client.get(link(alice))

    assert (answer.status_code, answer["Location"]) == (302, "/start/")
    assert client.get("/account/").context["user"] == alice
    assert AuditEntry.objects.get().action == "LOGIN_LINK_USED"


def test_a_login_link_works_once(client: Client, alice: User) -> None:
    address = link(alice)
    client.get(address)
    stranger = Client()

    assert stranger.get(address).status_code == 403
    assert stranger.get("/account/").status_code == 302


def test_a_login_link_ends_after_a_minute(client: Client, alice: User) -> None:
    assert client.get(link(alice, 61)).status_code == 403
    assert client.get(link(alice, 55)).status_code == 302


def test_a_browser_that_fetches_ahead_does_not_use_the_link_up(client: Client, alice: User) -> None:
    address = link(alice)
    ahead = client.get(address, headers={"Sec-Purpose": "prefetch;prerender"})

    assert (ahead.status_code, client.get("/account/").status_code) == (204, 302)
    assert client.get(address).status_code == 302


def test_a_login_link_is_for_browsing_only(client: Client, alice: User) -> None:
    address = link(alice)

    assert client.head(address).status_code == 405
    assert client.post(address).status_code == 405
    assert LoginLink.objects.count() == 1


def test_a_deactivated_user_cannot_use_a_link(client: Client, alice: User) -> None:
    address = link(alice)
    User.objects.update(is_active=False)

    assert client.get(address).status_code == 403


def test_the_link_is_not_stored(alice: User) -> None:
    secret = rows.create_link(alice, timezone.now())

    assert secret not in str(LoginLink.objects.values())


def test_deactivation_revokes_tokens_and_links(alice: User) -> None:
    rows.create_token(alice, timezone.now())
    link(alice)
    alice.is_active = False
    alice.save()

    assert (alice.api_tokens.count(), LoginLink.objects.count()) == (0, 0)


ELSEWHERE = [
    {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"},
    {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "navigate"},
    {"Referer": "http://evil.example.org/"},
    {"Referer": "http://testserver:8888/lab"},
    {"Referer": "http://[evil/"},
]


@pytest.mark.parametrize("headers", ELSEWHERE)
def test_another_site_cannot_log_a_browser_in(
    client: Client, alice: User, headers: dict[str, str]
) -> None:
    address = link(alice)
    answer = client.get(address, headers=headers)

    assert (answer.status_code, LoginLink.objects.count()) == (200, 1)
    assert "Log in as alice?" in answer.content.decode()
    assert client.get("/account/").status_code == 302


@pytest.mark.parametrize("site", ["none", "same-origin"])
def test_an_address_that_the_user_typed_logs_in_at_once(
    client: Client, alice: User, site: str
) -> None:
    headers = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "navigate"}

    assert client.get(link(alice), headers=headers).status_code == 302


def test_a_browser_of_another_user_is_asked_first(client: Client, alice: User, bob: User) -> None:
    client.force_login(bob)
    answer = client.get(link(alice))

    assert "This browser is logged in as bob." in answer.content.decode()
    assert client.get("/account/").context["user"] == bob


def test_the_answer_logs_the_browser_in(alice: User, bob: User) -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(bob)
    address = link(alice)
    token = client.get(address).context["csrf_token"]

    assert client.post(f"{address}confirm/").status_code == 403
    answer = client.post(f"{address}confirm/", {"csrfmiddlewaretoken": str(token)})

    assert (answer.status_code, answer["Location"]) == (302, "/start/")
    assert client.get("/account/").context["user"] == alice
    assert LoginLink.objects.count() == 0


def test_a_picture_of_another_page_does_not_use_the_link_up(client: Client, alice: User) -> None:
    headers = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}

    assert client.get(link(alice), headers=headers).status_code == 204
    assert LoginLink.objects.count() == 1
