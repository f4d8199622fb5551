from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.backends import ModelBackend
from django.contrib.auth.models import User
from django.http import HttpResponse
from django.test import Client

from gpucoord_site.config.settings import load_config
from tests.builders import PASSWORD

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _few_tries(settings: object) -> None:
    settings.AXES_FAILURE_LIMIT = 3  # type: ignore[attr-defined]


def log_in(
    name: str, password: str, address: str = "192.0.2.1", page: str = "/login/"
) -> HttpResponse:
    form = {"username": name, "password": password}
    return Client().post(page, form, REMOTE_ADDR=address)  # type: ignore[return-value]


def fail(times: int, page: str = "/login/") -> HttpResponse:
    return [log_in("alice", "wrong", page=page) for _ in range(times)][-1]


def test_after_some_wrong_passwords_logging_in_pauses(alice: User) -> None:
    response = fail(3)

    assert response.status_code == 429
    assert response["Retry-After"] == "900"
    assert "Too many wrong passwords" in response.content.decode()
    # The right one doesn't help either, while it lasts.
    assert log_in("alice", PASSWORD).status_code == 429


def test_before_that_the_right_password_starts_anew(alice: User) -> None:
    fail(2)
    assert log_in("alice", PASSWORD).status_code == 302

    fail(2)
    assert log_in("alice", PASSWORD).status_code == 302


def test_others_and_other_addresses_are_not_affected(alice: User, bob: User) -> None:
    fail(3)

    assert log_in("bob", PASSWORD).status_code == 302
    assert log_in("alice", PASSWORD, address="192.0.2.2").status_code == 302


def test_the_admins_login_pauses_too(alice: User) -> None:
    assert fail(3, page="/login/?next=/admin/").status_code == 429


def test_an_address_that_tries_many_names_is_paused(
    alice: User, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.LOGIN_FAILURES_PER_ADDRESS = 5
    answers = [log_in(f"name{i}", "wrong") for i in range(5)]
    hashed = []
    monkeypatch.setattr(ModelBackend, "authenticate", lambda *a, **k: hashed.append(a))
    refused = log_in("alice", PASSWORD)

    assert [answer.status_code for answer in answers] == [200] * 5
    assert (refused.status_code, refused["Retry-After"]) == (429, "900")
    assert "failed logins from your address" in refused.content.decode()
    assert hashed == []


def test_an_ipv6_client_cannot_change_its_address_within_its_network(
    alice: User, settings: Any
) -> None:
    settings.LOGIN_FAILURES_PER_ADDRESS = 5
    for i in range(5):
        log_in(f"name{i}", "wrong", address=f"2001:db8:1:2::{i + 1}")

    assert log_in("alice", PASSWORD, address="2001:db8:1:2:9::1").status_code == 429
    assert log_in("alice", PASSWORD, address="2001:db8:1:3::1").status_code == 302


@pytest.fixture
def proxied(settings: Any) -> Callable[..., HttpResponse]:
    """A login through a proxy on this machine: proxied("alice", "wrong", "192.0.2.1")."""
    settings.CONFIG = load_config(allowed_hosts="testserver")

    def log_in(name: str, password: str, client: str | None) -> HttpResponse:
        form = {"username": name, "password": password}
        headers = {"x-forwarded-for": client} if client else {}
        return Client().post("/login/", form, REMOTE_ADDR="127.0.0.1", headers=headers)  # type: ignore[return-value]

    return log_in


def test_behind_a_proxy_a_stranger_locks_out_only_their_own_address(
    alice: User, settings: Any, proxied: Callable[..., HttpResponse]
) -> None:
    settings.LOGIN_FAILURES_PER_ADDRESS = 5
    for i in range(8):
        proxied("alice" if i < 4 else f"name{i}", "wrong", "203.0.113.5")

    assert proxied("alice", PASSWORD, "203.0.113.5").status_code == 429
    assert proxied("alice", PASSWORD, "192.0.2.1").status_code == 302


def test_behind_a_proxy_that_reports_no_client_many_names_lock_out_no_one(
    alice: User, settings: Any, proxied: Callable[..., HttpResponse]
) -> None:
    settings.LOGIN_FAILURES_PER_ADDRESS = 5
    for i in range(8):
        proxied(f"name{i}", "wrong", None)

    assert proxied("alice", PASSWORD, None).status_code == 302


def test_a_client_cannot_choose_its_address(
    alice: User, proxied: Callable[..., HttpResponse]
) -> None:
    for i in range(3):
        proxied("alice", "wrong", f"192.0.2.{i}, 203.0.113.5")

    assert proxied("alice", PASSWORD, "192.0.2.99, 203.0.113.5").status_code == 429
