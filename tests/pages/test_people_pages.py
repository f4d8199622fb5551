"""Pages of operators about users: new ones with invitations, and one with quota and tokens."""

from __future__ import annotations

import pwd
from collections.abc import Callable

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client

from gpucoord_site.accounts import people_pages
from monitor.models import ApiToken, AuditEntry
from monitor.owners import rows
from scheduler.facts.language_models import OWNER
from scheduler.models import Quota
from tests import jobs_made
from tests.builders import NOW

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("data", "accounts")]
AsUser = Callable[[User], Client]


def entry(name: str, uid: int, shell: str = "/bin/bash") -> pwd.struct_passwd:
    return pwd.struct_passwd((name, "x", uid, uid, f"The {name},,", f"/home/{name}", shell))


@pytest.fixture
def accounts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The OS accounts of the server."""
    entries = [
        entry("root", 0),
        entry("dora", 1001),
        entry("emil", 1002),
        entry("backupper", 1003, "/usr/sbin/nologin"),
        entry("postgres", 110),
        entry("alice", 1000),
    ]
    monkeypatch.setattr(people_pages.pwd, "getpwall", lambda: entries)


@pytest.fixture
def operator(db: None) -> User:
    return User.objects.create_user("opal", is_staff=True)


def actions_of(user: User) -> list[tuple[str, dict[str, str]]]:
    """Each change that the pages offer."""
    row, _ = rows.create_token(user, NOW)
    base = f"/people/{user.pk}"
    return [
        ("/people/add/", {"accounts": "dora"}),
        (f"{base}/account/", {"account": "dora", "is_active": "on"}),
        (f"{base}/quota/", {"share_pct": "50"}),
        (f"{base}/invitation/", {}),
        (f"{base}/tokens/{row.pk}/revoke/", {}),
    ]


class TestRights:
    def test_others_see_nothing_and_change_nothing(self, alice: User, as_user: AsUser) -> None:
        bare, browser = Client(), as_user(alice)
        for path in ("/people/", "/people/add/", f"/people/{alice.pk}/"):
            assert bare.get(path)["Location"].startswith("/login/")
            assert browser.get(path).status_code == 403
        for path, fields in actions_of(alice):
            assert bare.post(path, fields)["Location"].startswith("/login/")
            assert browser.post(path, fields).status_code == 403
        assert not User.objects.filter(username="dora").exists()
        assert not Quota.objects.exists()

    def test_an_operator_sees_account_and_quota_only(
        self, alice: User, operator: User, as_user: AsUser
    ) -> None:
        browser = as_user(operator)
        html = browser.get(f"/people/{alice.pk}/").text

        assert browser.get("/people/").status_code == 200
        assert "GPU-minutes today" in html
        assert "API tokens" not in html
        assert '<form method="post" action="/people/' not in html
        assert {browser.post(*action).status_code for action in actions_of(alice)} == {403}

    def test_the_permission_to_change_quotas_is_enough_for_quotas(
        self, alice: User, operator: User, as_user: AsUser
    ) -> None:
        operator.user_permissions.add(Permission.objects.get(codename="change_quota"))

        answer = as_user(operator).post(f"/people/{alice.pk}/quota/", {"share_pct": "50"})
        assert answer.status_code == 302
        assert Quota.objects.get(user=alice).share_pct == 50

    def test_forms_of_other_sites_are_refused(self, root: User, alice: User) -> None:
        browser = Client(enforce_csrf_checks=True)
        browser.force_login(root, "django.contrib.auth.backends.ModelBackend")

        assert {browser.post(*action).status_code for action in actions_of(alice)} == {403}


class TestAdding:
    def test_accounts_of_people_without_a_user_are_offered(
        self, root: User, alice: User, as_user: AsUser
    ) -> None:
        form = as_user(root).get("/people/add/").context["form"]

        assert form.fields["accounts"].choices == [
            ("dora", "dora (The dora)"),
            ("emil", "emil (The emil)"),
        ]

    def test_each_gets_a_user_a_quota_and_a_link(self, root: User, as_user: AsUser) -> None:
        fields = {
            "accounts": ["dora", "emil"],
            "others": "dora, zoe",
            "share_pct": "20",
            "gpu_minutes": "600",
            "is_operator": "on",
        }
        answer = as_user(root).post("/people/add/", fields)

        urls = [url for _, url in answer.context["lines"]]
        assert all(Client().get(url, follow=True).status_code == 200 for url in urls)
        added = User.objects.filter(username__in=("dora", "emil", "zoe"), is_staff=True)
        assert [rows.name_of(user) for user in added.order_by("username")] == [
            "dora",
            "emil",
            "zoe",
        ]
        assert set(Quota.objects.values_list("user", "share_pct", "gpu_minutes")) == {
            (user.pk, 20, 600) for user in added
        }
        assert not User.objects.filter(username="dora", is_superuser=True).exists()

    def test_without_limits_there_is_no_quota(self, root: User, as_user: AsUser) -> None:
        as_user(root).post("/people/add/", {"accounts": ["dora"]})

        assert not Quota.objects.exists()
        assert not User.objects.get(username="dora").is_staff

    @pytest.mark.parametrize(
        ("fields", "text"),
        [
            ({}, "Select an account, or write a name."),
            ({"accounts": "root"}, "root is not one of the available choices"),
            ({"others": "zoe root"}, "The system account root"),
            ({"others": "zoe alice"}, "alice: A user with that username already exists."),
            ({"others": "zoe a/b"}, "Enter a valid username"),
            ({"others": " ".join(f"u{i}" for i in range(101))}, "at most 100 users"),
            ({"accounts": "dora", "share_pct": "101"}, "less than or equal to 100"),
        ],
    )
    def test_a_mistake_adds_no_user(
        self, root: User, alice: User, as_user: AsUser, fields: dict[str, str], text: str
    ) -> None:
        answer = as_user(root).post("/people/add/", fields)

        assert answer.status_code == 422
        assert text in answer.text
        assert User.objects.count() == 2


class TestOnePerson:
    def test_account_and_access_change(self, root: User, alice: User, as_user: AsUser) -> None:
        job = jobs_made.waiting(alice)
        actions_of(alice)
        as_user(root).post(f"/people/{alice.pk}/account/", {"account": "dora"})
        alice.refresh_from_db()
        job.refresh_from_db()

        assert rows.name_of(alice) == "dora"
        assert (alice.is_active, bool(job.held), ApiToken.objects.count()) == (False, True, 0)
        changes = AuditEntry.objects.order_by("pk").values_list("action", flat=True)
        assert list(changes) == ["OS_ACCOUNT_CHANGED", "ACCESS_CHANGED"]

    def test_the_account_of_another_user_stays_theirs(
        self, root: User, alice: User, bob: User, as_user: AsUser
    ) -> None:
        fields = {"account": "bob", "is_active": "on"}
        answer = as_user(root).post(f"/people/{alice.pk}/account/", fields)

        assert "bob is the OS account of another user." in answer.text
        assert (rows.name_of(alice), rows.name_of(bob)) == ("alice", "bob")

    @pytest.mark.parametrize("account", ["root", "nobody"])
    def test_an_account_of_no_user_is_refused(
        self, root: User, alice: User, as_user: AsUser, account: str
    ) -> None:
        fields = {"account": account, "is_active": "on"}

        assert as_user(root).post(f"/people/{alice.pk}/account/", fields).status_code == 422
        assert rows.name_of(alice) == "alice"

    def test_a_superuser_is_not_locked_out_by_the_form(self, root: User, as_user: AsUser) -> None:
        as_user(root).post(f"/people/{root.pk}/account/", {"account": ""})
        root.refresh_from_db()

        assert (root.is_active, root.is_staff, rows.name_of(root)) == (True, True, None)

    def test_an_empty_limit_is_no_limit(self, root: User, alice: User, as_user: AsUser) -> None:
        Quota.objects.create(user=alice, share_pct=20, gpu_minutes=60, queued=7)
        browser = as_user(root)
        assert 'name="share_pct" value="20"' in browser.get(f"/people/{alice.pk}/").text
        browser.post(f"/people/{alice.pk}/quota/", {"share_pct": "30", "share_is_limit": "on"})

        row = Quota.objects.get(user=alice)
        assert (row.share_pct, row.share_is_limit, row.gpu_minutes) == (30, True, None)
        # The limits of the admin stay.
        assert row.queued == 7

    def test_an_invitation_is_shown_once(self, root: User, alice: User, as_user: AsUser) -> None:
        answer = as_user(root).post(f"/people/{alice.pk}/invitation/")

        assert "/login/invitation/" in answer.text
        assert "no-store" in answer["Cache-Control"]

    def test_nobody_gets_to_log_in_as_the_user_of_model_services(
        self, root: User, as_user: AsUser
    ) -> None:
        browser, owner = as_user(root), User.objects.create_user(OWNER)

        answer = browser.post(f"/people/{owner.pk}/invitation/", follow=True)
        assert "/login/invitation/" not in answer.text
        assert "so it cannot log in" in answer.text
        assert "Make an invitation link" not in answer.text

        owner.delete()
        assert "so it cannot log in" in browser.post("/people/add/", {"others": OWNER}).text
        for body in ({"name": OWNER}, {"name": "dora", "account": OWNER}):
            answer = browser.post("/api/users/", body, "application/json")
            assert "so it cannot log in" in answer.text
        assert not User.objects.filter(username__in=(OWNER, "dora")).exists()

    def test_only_a_token_of_this_user_is_revoked_there(
        self, root: User, alice: User, bob: User, as_user: AsUser
    ) -> None:
        row, _ = rows.create_token(bob, NOW)
        browser = as_user(root)

        assert browser.post(f"/people/{alice.pk}/tokens/{row.pk}/revoke/").status_code == 404
        assert browser.post(f"/people/{bob.pk}/tokens/{row.pk}/revoke/").status_code == 302
        assert not ApiToken.objects.exists()

    def test_hostile_names_are_shown_as_text(self, root: User, as_user: AsUser) -> None:
        user = User.objects.create(username="<b>x</b>")
        browser = as_user(root)

        for path in ("/people/", f"/people/{user.pk}/", "/people/?q=<b>"):
            assert "<b>x</b>" not in browser.get(path).text

    def test_the_page_of_use_leads_operators_here(
        self, root: User, alice: User, as_user: AsUser
    ) -> None:
        assert f"/people/{alice.pk}/" in as_user(root).get("/users/alice/").text
        assert f"/people/{alice.pk}/" not in as_user(alice).get("/users/alice/").text
