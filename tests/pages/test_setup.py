from __future__ import annotations

from collections.abc import Callable

import pytest
from django.contrib.auth.models import User
from django.test import Client

from tests import jobs_made

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("data")]
AsUser = Callable[[User], Client]


def test_an_operator_of_a_new_server_sees_the_first_steps(root: User, as_user: AsUser) -> None:
    html = as_user(root).get("/").text

    assert "First steps" in html
    assert "/admin/auth/user/add/" in html


def test_a_step_that_is_done_is_marked(root: User, as_user: AsUser) -> None:
    jobs_made.waiting(root)

    assert '<span class="done">Submit a first job</span>' in as_user(root).get("/").text


def test_ordinary_users_do_not_see_them(alice: User, as_user: AsUser) -> None:
    assert "First steps" not in as_user(alice).get("/").text


def test_they_go_when_the_server_is_in_use(root: User, alice: User, as_user: AsUser) -> None:
    jobs_made.waiting(alice)

    assert "First steps" not in as_user(root).get("/").text


def test_they_can_be_hidden(root: User, as_user: AsUser) -> None:
    browser = as_user(root)
    browser.post("/setup/hide/")

    assert "First steps" not in browser.get("/").text
