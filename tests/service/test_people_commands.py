"""Quotas and users by REST, the command line and the Python client; invitations."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import time_machine
from django.contrib.auth.models import Group, Permission, User
from django.test import Client
from django.utils import timezone

from gpucoord_site.cli import verbs
from monitor.models import AuditEntry
from monitor.owners import rows
from scheduler.models import Quota
from tests.cli_bridge import connect_as

pytestmark = pytest.mark.django_db
AsUser = Callable[[User], Client]
PASSWORD = "a long enough Passphrase 7"


def audited() -> list[str]:
    return list(AuditEntry.objects.order_by("pk").values_list("action", flat=True))


class TestQuotas:
    def test_set_makes_and_changes_the_own_quota_of_a_user(
        self,
        root: User,
        alice: User,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        connect_as(root, monkeypatch)

        assert verbs.quota(["set", "alice", "--share", "30", "--gpu-minutes", "600"]) == 0
        assert "of 600" in capsys.readouterr().out
        assert verbs.quota(["set", "alice", "--share", "none", "--memory", "80GiB"]) == 0

        row = Quota.objects.get(user=alice)
        assert (row.share_pct, row.gpu_minutes, row.memory_bytes) == (None, 600, 80 * 2**30)
        assert audited() == ["QUOTA_SET", "QUOTA_CHANGED"]
        assert AuditEntry.objects.latest("pk").by == root.username

    @pytest.mark.parametrize(
        "words",
        [
            ["set", "alice"],
            ["set", "--share", "30"],
            ["--share", "30"],
            ["set", "alice", "--user", "bob", "--share", "30"],
        ],
    )
    def test_incomplete_words_are_answered_with_the_form(
        self, words: list[str], capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert verbs.quota(words) == 2
        assert "gpucoord: " in capsys.readouterr().err

    @pytest.mark.parametrize(
        ("body", "field"),
        [
            ({"user": "nobody-here", "gpus": 1}, "user"),
            ({"user": "alice", "share_pct": 101}, "share_pct"),
            ({"user": "alice", "gpus": -1}, "gpus"),
            ({"user": "alice", "sharepct": 1}, "sharepct"),
        ],
    )
    def test_a_wrong_field_is_named_and_nothing_is_changed(
        self, body: dict[str, Any], field: str, root: User, alice: User, as_user: AsUser
    ) -> None:
        answer = as_user(root).patch("/api/quota/", body, "application/json")

        assert answer.status_code == 422
        assert [error["field"] for error in answer.json()["errors"]] == [field]
        assert not Quota.objects.exists()

    def test_only_operators_with_the_permission_change_quotas(
        self, alice: User, bob: User, as_user: AsUser
    ) -> None:
        body = {"user": "alice", "gpus": 8}
        assert as_user(alice).patch("/api/quota/", body, "application/json").status_code == 403
        User.objects.filter(pk=bob.pk).update(is_staff=True)
        assert as_user(bob).patch("/api/quota/", body, "application/json").status_code == 403

        bob.user_permissions.add(Permission.objects.get(codename="change_quota"))

        bob = User.objects.get(pk=bob.pk)
        assert as_user(bob).patch("/api/quota/", body, "application/json").status_code == 200


class TestUsers:
    def test_a_user_is_added_like_another_one_but_without_its_rights(
        self,
        root: User,
        bob: User,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        User.objects.filter(pk=bob.pk).update(is_staff=True)
        bob.groups.add(Group.objects.create(name="vision"))
        Quota.objects.create(user=bob, gpus=2, share_pct=25)
        connect_as(root, monkeypatch)

        assert verbs.user(["add", "dora", "--account", "dor", "--like", "bob"]) == 0

        dora = User.objects.get(username="dora")
        assert "with the OS account dor" in capsys.readouterr().out
        assert rows.name_of(dora) == "dor"
        assert (dora.is_staff, dora.is_superuser, dora.has_usable_password()) == (False,) * 3
        assert [group.name for group in dora.groups.all()] == ["vision"]
        assert Quota.objects.get(user=dora).gpus == 2
        assert audited() == ["QUOTA_SET", "USER_CREATED"]

    @pytest.mark.parametrize(
        ("words", "complaint"),
        [
            (["add", "alice"], "already exists"),
            (["add", "dora", "--account", "alice"], "is the OS account of another user"),
            (["add", "dora", "--like", "none-such"], "There is no user none-such"),
            (["add", "a b"], "valid username"),
            (["invite", "none-such"], "There is no user none-such"),
        ],
    )
    def test_what_can_not_be_added_is_named_and_leaves_nothing(
        self,
        words: list[str],
        complaint: str,
        root: User,
        alice: User,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        connect_as(root, monkeypatch)

        assert verbs.user(words) == 125
        assert complaint in capsys.readouterr().err
        assert set(User.objects.values_list("username", flat=True)) == {"alice", root.username}

    @pytest.mark.parametrize("path", ["/api/users/", "/api/users/alice/invitation/"])
    def test_only_superusers_add_and_invite(
        self, path: str, alice: User, bob: User, as_user: AsUser
    ) -> None:
        User.objects.filter(pk=bob.pk).update(is_staff=True)

        answer = as_user(bob).post(path, {"name": "dora"}, "application/json")

        assert answer.status_code == 403


class TestInvitations:
    @pytest.fixture
    def path(self, root: User, alice: User, monkeypatch: pytest.MonkeyPatch) -> str:
        with connect_as(root, monkeypatch) as client:
            url: str = client.invite_user("alice")["url"]
        return url.removeprefix("http://testserver")

    def test_the_link_sets_the_password_and_logs_in_once(
        self, path: str, alice: User, client: Client
    ) -> None:
        form = client.get(path, follow=True)
        body = {"new_password1": PASSWORD, "new_password2": PASSWORD}
        assert "Welcome, alice" in form.content.decode()

        answer = client.post(form.request["PATH_INFO"], body)

        assert (answer.status_code, answer.headers["Location"]) == (302, "/start/")
        assert client.session["_auth_user_id"] == str(alice.pk)
        assert User.objects.get(pk=alice.pk).check_password(PASSWORD)
        assert audited()[-1] == "PASSWORD_SET"
        again = Client().get(path, follow=True).content.decode()
        assert "This invitation is not valid" in again

    def test_a_weak_password_is_refused_with_the_reason(self, path: str, client: Client) -> None:
        form = client.get(path, follow=True)
        body = {"new_password1": "12345678", "new_password2": "12345678"}

        shown = client.post(form.request["PATH_INFO"], body).content.decode()

        assert "entirely numeric" in shown

    def test_it_ends_after_three_days_and_with_the_user(self, path: str, alice: User) -> None:
        with time_machine.travel(timezone.now() + timedelta(days=3, minutes=1)):
            assert "not valid" in Client().get(path, follow=True).content.decode()
        User.objects.update(is_active=False)
        assert "not valid" in Client().get(path, follow=True).content.decode()

    @pytest.mark.parametrize("wrong", ["/login/invitation/x/y/", "/login/invitation/MQ/a-b/"])
    def test_a_made_up_link_is_refused(self, wrong: str, alice: User) -> None:
        answer = Client().get(wrong, follow=True)

        assert "This invitation is not valid" in answer.content.decode()

    def test_the_command_prints_the_link(
        self,
        root: User,
        alice: User,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        connect_as(root, monkeypatch)

        assert verbs.user(["invite", "alice"]) == 0
        assert "  http://testserver/login/invitation/" in capsys.readouterr().out
        assert verbs.user(["invite", "alice", "--like", "bob"]) == 2
