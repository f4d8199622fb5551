from __future__ import annotations

import pytest
from django.contrib.auth.models import User
from django.http import HttpResponse
from django.test import Client

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
    assert fail(3, page="/admin/login/").status_code == 429
