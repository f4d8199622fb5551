from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.conf import settings as django_settings
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from gpucoord_site.accounts import sessions
from gpucoord_site.accounts import views as account_views
from gpucoord_site.config.settings import Config, ConfigError
from gpucoord_site.models import UserSession
from gpucoord_site.service.startup import make_first_admin
from monitor.models import ApiToken
from monitor.owners import rows
from monitor.usage.rows import rollups
from tests.builders import PASSWORD

pytestmark = pytest.mark.django_db
NEW = "a completely new one"
SignIn = Callable[[User], Client]
COOKIE = django_settings.SESSION_COOKIE_NAME


def change(client: Client, old: str = PASSWORD, new: str = NEW, **more: str) -> Any:
    form = {"old_password": old, "new_password1": new, "new_password2": new, **more}
    return client.post("/account/password/", form)


def is_signed_in(client: Client) -> bool:
    return client.get("/account/").status_code == 200


def test_a_user_changes_their_password(alice: User, as_user: SignIn) -> None:
    client = as_user(alice)
    answer = change(client)

    alice.refresh_from_db()
    assert answer["Location"] == "/account/"
    assert alice.check_password(NEW)
    assert is_signed_in(client)


def test_a_new_password_ends_the_other_sessions(alice: User, as_user: SignIn) -> None:
    here, elsewhere = as_user(alice), as_user(alice)
    change(here)

    assert (is_signed_in(here), is_signed_in(elsewhere)) == (True, False)
    assert UserSession.objects.filter(user=alice).count() == 1


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("wrong", NEW, "old password was entered incorrectly"),
        (PASSWORD, "elevenchars", "at least 12 characters"),
        (PASSWORD, "123456789012", "entirely numeric"),
    ],
)
def test_a_bad_password_is_refused_with_the_reason(
    alice: User, as_user: SignIn, old: str, new: str, words: str
) -> None:
    answer = change(as_user(alice), old, new)

    alice.refresh_from_db()
    assert (answer.status_code, alice.check_password(PASSWORD)) == (422, True)
    assert words in answer.content.decode()
    assert NEW not in answer.content.decode()


def test_wrong_passwords_end_the_session(alice: User, as_user: SignIn) -> None:
    client = as_user(alice)
    answers = [change(client, old="wrong") for _ in range(account_views.MOST_WRONG_PASSWORDS)]

    assert (answers[-1].status_code, answers[-1]["Location"]) == (302, "/login/")
    assert not is_signed_in(client)


@pytest.mark.parametrize(("box", "left"), [({"revoke_tokens": "on"}, 0), ({}, 1)])
def test_a_new_password_revokes_tokens_only_on_request(
    alice: User, as_user: SignIn, box: dict[str, str], left: int
) -> None:
    rows.create_token(alice, timezone.now())
    change(as_user(alice), **box)

    assert ApiToken.objects.filter(user=alice).count() == left


def token_on(answer: Any) -> str:
    found = re.search(r'<pre id="token">(.*?)</pre>', answer.content.decode())
    assert found
    return found[1]


def test_a_user_makes_a_token_that_expires(alice: User, as_user: SignIn) -> None:
    client = as_user(alice)
    answer = client.post("/account/tokens/", {"name": "laptop", "days": "30"})
    text = token_on(answer)
    row = ApiToken.objects.get()

    assert rows.authenticate(text, timezone.now()) == alice
    assert rows.authenticate(text, timezone.now() + timedelta(days=31)) is None
    assert "no-store" in answer["Cache-Control"]
    page = client.get("/account/").content.decode()
    assert "laptop" in page
    assert row.prefix in page
    assert text not in page
    assert row.digest not in page


@pytest.mark.parametrize(
    "form", [{"days": "9999"}, {"days": "x"}, {}, {"days": "7", "name": "a\nb"}]
)
def test_a_token_without_a_good_expiry_and_name_is_refused(
    alice: User, as_user: SignIn, form: dict[str, str]
) -> None:
    assert as_user(alice).post("/account/tokens/", form).status_code == 422
    assert not ApiToken.objects.exists()


def test_a_user_has_a_limited_number_of_tokens(
    alice: User, as_user: SignIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(account_views, "MOST_TOKENS", 1)
    client = as_user(alice)
    answers = [client.post("/account/tokens/", {"days": "7"}) for _ in range(2)]

    assert [answer.status_code for answer in answers] == [200, 422]
    assert "Revoke one first" in answers[1].content.decode()


def test_a_user_revokes_their_own_tokens_only(alice: User, bob: User, as_user: SignIn) -> None:
    mine, _ = rows.create_token(alice, timezone.now())
    other, _ = rows.create_token(bob, timezone.now())
    client = as_user(alice)

    assert client.post(f"/account/tokens/{mine.pk}/revoke/").status_code == 302
    assert client.post(f"/account/tokens/{other.pk}/revoke/").status_code == 404
    assert list(ApiToken.objects.all()) == [other]


def test_the_page_shows_no_token_and_no_session_of_another_user(
    alice: User, bob: User, as_user: SignIn
) -> None:
    as_user(bob)
    other, _ = rows.create_token(bob, timezone.now(), name="secret project")
    page = as_user(alice).get("/account/").content.decode()

    assert "secret project" not in page
    assert other.prefix not in page
    assert page.count("account/sessions/end/") == 1


def test_a_token_ends_with_its_account(alice: User) -> None:
    _, text = rows.create_token(alice, timezone.now())
    alice.is_active = False
    alice.save()
    assert rows.authenticate(text, timezone.now()) is None

    alice.delete()
    assert not ApiToken.objects.exists()


def test_a_user_lists_and_ends_their_own_sessions(alice: User, bob: User, as_user: SignIn) -> None:
    here, elsewhere, other = as_user(alice), Client(HTTP_USER_AGENT=FIREFOX), as_user(bob)
    elsewhere.post("/login/", {"username": "alice", "password": PASSWORD}, REMOTE_ADDR="192.0.2.7")
    page = here.get("/account/").content.decode()
    assert "Firefox, Linux" in page
    assert "192.0.2.7" in page
    key = elsewhere.cookies[COOKIE].value
    assert key not in page

    chosen = {"session": sessions.public_id(key)}
    assert here.post("/account/sessions/end/", chosen).status_code == 302
    assert [is_signed_in(each) for each in (here, elsewhere, other)] == [True, False, True]


FIREFOX = "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"


def test_a_user_ends_all_other_sessions(alice: User, bob: User, as_user: SignIn) -> None:
    here, elsewhere, other = as_user(alice), as_user(alice), as_user(bob)
    here.post("/account/sessions/end/", {"others": "1"})

    assert [is_signed_in(each) for each in (here, elsewhere, other)] == [True, False, True]


def test_a_user_cannot_end_the_session_of_another_user(
    alice: User, bob: User, as_user: SignIn
) -> None:
    other = as_user(bob)
    chosen = {"session": sessions.public_id(other.cookies[COOKIE].value)}

    assert as_user(alice).post("/account/sessions/end/", chosen).status_code == 404
    assert is_signed_in(other)


def test_a_session_ends_with_its_account(alice: User, as_user: SignIn) -> None:
    as_user(alice)
    alice.delete()

    assert not UserSession.objects.exists()


def test_an_unused_session_ends_and_a_used_one_goes_on(
    alice: User, as_user: SignIn, time_machine: Any
) -> None:
    start = timezone.now()
    time_machine.move_to(start, tick=False)
    used, unused = as_user(alice), as_user(alice)
    for hours in (8, 16):
        time_machine.move_to(start + timedelta(hours=hours), tick=False)
        assert is_signed_in(used)

    assert not is_signed_in(unused)


def test_a_page_that_refreshes_itself_does_not_extend_a_session(
    alice: User, as_user: SignIn, time_machine: Any
) -> None:
    start = timezone.now()
    time_machine.move_to(start, tick=False)
    client = as_user(alice)
    for hours in (4, 8, 11):
        time_machine.move_to(start + timedelta(hours=hours), tick=False)
        assert client.get("/account/", headers={"HX-Request": "true"}).status_code == 200

    time_machine.move_to(start + timedelta(hours=13), tick=False)
    assert not is_signed_in(client)


def test_a_session_ends_after_two_weeks_of_use(
    alice: User, as_user: SignIn, time_machine: Any
) -> None:
    start = timezone.now()
    client = as_user(alice)
    for hours in range(0, 14 * 24, 10):
        time_machine.move_to(start + timedelta(hours=hours), tick=False)
        assert is_signed_in(client)
    time_machine.move_to(start + timedelta(days=14, hours=1), tick=False)
    client.get("/account/")

    assert not is_signed_in(client)


def test_a_busy_session_is_saved_rarely(alice: User, as_user: SignIn, time_machine: Any) -> None:
    time_machine.move_to(timezone.now(), tick=False)
    client = as_user(alice)
    client.get("/account/")
    before = UserSession.objects.get().seen_at
    for minutes in (1, 2):
        time_machine.shift(timedelta(minutes=minutes))
        client.get("/account/")
    assert UserSession.objects.get().seen_at == before

    time_machine.shift(timedelta(minutes=5))
    client.get("/account/")
    assert UserSession.objects.get().seen_at != before


def test_sessions_that_are_over_are_deleted(alice: User, as_user: SignIn) -> None:
    as_user(alice)
    keep = rollups.RetentionPeriods(raw=timedelta(hours=2))
    rollups.prune(keep, timezone.now())
    assert UserSession.objects.count() == 1

    rollups.prune(keep, timezone.now() + timedelta(hours=13))
    assert not UserSession.objects.exists()


def test_the_first_administrator_needs_a_good_password_too(db: None) -> None:
    with pytest.raises(ConfigError, match="at least 12 characters"):
        make_first_admin(Config(admin_password="short"))

    assert not User.objects.exists()


@pytest.mark.parametrize(
    "page", ["/account/password/", "/account/tokens/", "/account/sessions/end/"]
)
def test_changes_need_a_post_and_a_login(
    client: Client, alice: User, as_user: SignIn, page: str
) -> None:
    assert as_user(alice).get(page).status_code == 405
    assert client.post(page)["Location"].startswith("/login/")
