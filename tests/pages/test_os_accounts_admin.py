from __future__ import annotations

from collections.abc import Callable

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client

from gpucoord_site.accounts import people
from monitor.models import AuditEntry, OsAccount
from monitor.owners import rows
from tests.builders import NOW

pytestmark = pytest.mark.django_db
LIST = "/admin/monitor/osaccount/"
SignIn = Callable[[User], Client]


def test_a_superuser_assigns_an_account_and_the_change_is_audited(
    root: User, alice: User, as_user: SignIn
) -> None:
    row = OsAccount.objects.get(user=alice)
    answer = as_user(root).post(f"{LIST}{row.pk}/change/", {"user": alice.pk, "name": "asmith"})

    assert answer.status_code == 302
    assert (rows.name_of(alice), rows.user_of("asmith")) == ("asmith", alice)
    entry = AuditEntry.objects.get(action="OS_ACCOUNT_CHANGED")
    assert (entry.before, entry.after) == (
        {"user": "alice", "account": "alice"},
        {"user": "alice", "account": "asmith"},
    )


def test_an_account_belongs_to_one_user(
    root: User, alice: User, bob: User, as_user: SignIn
) -> None:
    row = OsAccount.objects.get(user=alice)
    as_user(root).post(f"{LIST}{row.pk}/change/", {"user": alice.pk, "name": "bob"})

    assert rows.user_of("bob") == bob


@pytest.mark.parametrize("name", ["root", "nobody", "a\0b", "\u202eevil", " "])
def test_accounts_that_are_no_persons_are_refused(
    name: str, root: User, alice: User, as_user: SignIn
) -> None:
    row = OsAccount.objects.get(user=alice)
    as_user(root).post(f"{LIST}{row.pk}/change/", {"user": alice.pk, "name": name})

    assert rows.name_of(alice) == "alice"


def test_an_account_is_removed_with_an_audit_entry(
    root: User, alice: User, as_user: SignIn
) -> None:
    row = OsAccount.objects.get(user=alice)
    as_user(root).post(f"{LIST}{row.pk}/delete/", {"post": "yes"})

    assert rows.name_of(alice) is None
    assert AuditEntry.objects.get().after is None


def test_staff_with_all_permissions_only_look(alice: User, bob: User, as_user: SignIn) -> None:
    User.objects.filter(pk=bob.pk).update(is_staff=True)
    bob.user_permissions.set(Permission.objects.all())
    row = OsAccount.objects.get(user=alice)
    client = as_user(bob)

    assert client.get(LIST).status_code == 200
    assert client.get(f"{LIST}add/").status_code == 403
    client.post(f"{LIST}{row.pk}/change/", {"user": bob.pk, "name": "alice"})
    client.post(f"{LIST}{row.pk}/delete/", {"post": "yes"})
    assert rows.user_of("alice") == alice


def test_a_new_user_has_the_account_with_their_name(db: None) -> None:
    user = User.objects.create_user("dora")

    assert rows.name_of(user) == "dora"


def test_a_new_user_does_not_get_the_account_of_another(alice: User, bob: User) -> None:
    OsAccount.objects.filter(user=bob).delete()
    OsAccount.objects.filter(user=alice).update(name="carl")
    carl = User.objects.create_user("carl")

    assert (rows.name_of(carl), rows.user_of("carl")) == (None, alice)


def test_the_first_start_lists_the_accounts_of_earlier_users_once(alice: User, bob: User) -> None:
    OsAccount.objects.all().delete()

    assert rows.adopt_earlier_users(NOW) == 2
    assert rows.name_of(alice) == "alice"
    OsAccount.objects.filter(user=bob).delete()
    assert rows.adopt_earlier_users(NOW) == 0


def test_only_superusers_link_people_of_login_services(
    root: User, alice: User, bob: User, as_user: SignIn
) -> None:
    User.objects.filter(pk=bob.pk).update(is_staff=True)
    bob.user_permissions.set(Permission.objects.all())
    add = "/admin/gpucoord_site/externallogin/add/"
    form = {"user": alice.pk, "provider": "https://sso.example.org", "subject": "s-1"}

    assert as_user(bob).post(add, form).status_code == 403
    assert as_user(root).post(add, form).status_code == 302
    assert people.external_user("https://sso.example.org", "s-1") == alice
