"""The page of hosts, REST and join tokens."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from monitor.gpus.rows import hosts as rows
from monitor.gpus.rows import snapshot as snapshots
from monitor.journal.rows import events
from monitor.models import Host, JoinToken, LatestSnapshot
from tests.builders import host, snapshot

pytestmark = pytest.mark.django_db
As = Callable[[User], Client]


@pytest.fixture(autouse=True)
def two_hosts() -> None:
    """east is in contact; west is not, since a minute."""
    now = timezone.now()
    snapshots.record(snapshot(2, host=host(name="east"), at=now))
    snapshots.record(snapshot(1, host=host(name="west"), at=now - timedelta(seconds=60)))


def post(client: Client, **data: str) -> str:
    return client.post("/hosts/", data, follow=True).content.decode()


def test_users_see_all_hosts_and_which_of_them_is_silent(alice: User, as_user: As) -> None:
    text = as_user(alice).get("/hosts/").content.decode()

    assert "No contact with west" in text
    assert "contact lost" in text
    assert "Change a host" not in text


def test_rest_lists_state_and_silence_of_each_host(alice: User, as_user: As) -> None:
    east, west = as_user(alice).get("/api/hosts/").json()["hosts"]

    assert (east["name"], east["state"], east["silent_since"]) == ("east", "active", None)
    assert west["silent_since"] is not None


def test_an_operator_drains_and_enables_a_host(root: User, as_user: As) -> None:
    client = as_user(root)

    assert "starts no new jobs" in post(client, do="drain", host="east", reason="new disk")
    drained = rows.find("east")
    assert drained is not None
    assert (drained.state.value, drained.changed_by, drained.reason) == (
        "drained", "root", "new disk",
    )  # fmt: skip
    assert "takes jobs again" in post(client, do="enable", host="east")
    assert [e.kind for e in events.recent(5, kind="HOST_CHANGED")] == ["HOST_CHANGED"] * 2


def test_only_a_silent_host_is_confirmed_down_or_removed(root: User, as_user: As) -> None:
    client = as_user(root)

    assert "still sends readings" in post(client, do="down", host="east")
    assert "Stop it first" in post(client, do="remove", host="east")
    assert "west is confirmed down" in post(client, do="down", host="west")
    assert rows.confirmed_down() == ["west"]
    assert "west is removed" in post(client, do="remove", host="west")
    assert [fact.name for fact in rows.all_hosts()] == ["east"]
    assert not LatestSnapshot.objects.filter(host="west").exists()


def test_users_change_no_host(alice: User, as_user: As) -> None:
    for action in ("drain", "down", "remove", "token"):
        answer = as_user(alice).post("/hosts/", {"do": action, "host": "west"})
        assert answer.status_code == 403
    assert not Host.objects.exists()


def test_unknown_hosts_and_actions_are_not_found(root: User, as_user: As) -> None:
    client = as_user(root)

    assert client.post("/hosts/", {"do": "drain", "host": "north"}).status_code == 404
    assert client.post("/hosts/", {"do": "explode", "host": "east"}).status_code == 404


def test_a_join_token_is_shown_once_and_good_for_one_host_and_day(root: User, as_user: As) -> None:
    now = timezone.now()
    text = as_user(root).post("/hosts/", {"do": "token"}).content.decode()
    token = re.search(r"gpj_[\w-]+", text)
    assert token is not None

    assert rows.is_valid_token(token[0], now)
    assert not rows.is_valid_token(token[0], now + timedelta(hours=25))
    assert token[0] not in as_user(root).get("/hosts/").content.decode()
    assert not JoinToken.objects.filter(digest__contains=token[0]).exists()
    rows.use_token(token[0])
    assert not rows.is_valid_token(token[0], now)


def test_staff_without_superuser_status_make_no_join_token(bob: User, as_user: As) -> None:
    bob.is_staff = True
    bob.save()

    assert as_user(bob).post("/hosts/", {"do": "token"}).status_code == 403


def test_the_admin_drains_hosts_in_one_step(root: User, as_user: As) -> None:
    rows.change("east", rows.HostState.ACTIVE, "root", "first", timezone.now())
    body = {"action": "drain", "_selected_action": ["east"]}

    as_user(root).post("/admin/monitor/host/", body)

    assert Host.objects.get(pk="east").state == "drained"
