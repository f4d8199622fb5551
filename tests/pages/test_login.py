from __future__ import annotations

from django.contrib.auth.models import User
from django.test import Client

from tests.builders import PASSWORD


def test_it_shows_the_form_without_a_menu(db: None) -> None:
    html = Client().get("/login/").content.decode()

    assert 'name="password"' in html
    assert "<nav" not in html


def test_it_goes_where_the_person_wanted_to_go(alice: User) -> None:
    response = Client().post(
        "/login/", {"username": "alice", "password": PASSWORD, "next": "/processes/"}
    )

    assert response["Location"] == "/processes/"


def test_it_goes_to_no_other_site(alice: User) -> None:
    response = Client().post(
        "/login/", {"username": "alice", "password": PASSWORD, "next": "https://evil.example/"}
    )

    assert response["Location"] == "/start/"


def test_it_says_what_was_wrong_and_keeps_the_name(alice: User) -> None:
    html = Client().post("/login/", {"username": "alice", "password": "x"}).content.decode()

    assert "The user name or the password is wrong" in html
    assert 'value="alice"' in html


def test_it_logs_out_by_post_only(alice: User) -> None:
    client = Client()
    client.force_login(alice, "django.contrib.auth.backends.ModelBackend")

    assert client.get("/logout/").status_code == 405
    assert client.post("/logout/")["Location"] == "/login/"
    assert client.get("/").status_code == 302
