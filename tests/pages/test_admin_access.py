from __future__ import annotations

from collections.abc import Callable

import pytest
from django.contrib.auth.models import User
from django.test import Client

pytestmark = pytest.mark.django_db
AsUser = Callable[[User], Client]


@pytest.mark.parametrize("path", ["/admin/", "/admin/login/", "/admin/scheduler/job/"])
def test_a_user_without_access_gets_the_error_page_of_the_site(
    path: str, alice: User, as_user: AsUser
) -> None:
    answer = as_user(alice).get(path)
    html = answer.content.decode()

    assert answer.status_code == 403
    assert "You don't have access to this page" in html.replace("&#x27;", "'")
    assert 'id="connection"' in html


def test_an_unknown_admin_page_is_a_page_not_found_for_a_user(alice: User, as_user: AsUser) -> None:
    answer = as_user(alice).get("/admin/nonsense/")

    assert answer.status_code in (403, 404)
    assert 'id="connection"' in answer.content.decode()


@pytest.mark.parametrize("path", ["/admin/", "/admin/login/"])
def test_a_visitor_is_sent_to_the_login_page_of_the_site(path: str, client: Client) -> None:
    answer = client.get(path, follow=True)

    assert answer.redirect_chain[-1][0] == "/login/?next=/admin/"
    assert "User name" in answer.content.decode()


def test_the_admin_is_marked_as_simulated(root: User, as_user: AsUser) -> None:
    html = as_user(root).get("/admin/").content.decode()

    assert html.count('class="sim-banner"') == 1
    assert "<title>[simulated] " in html
