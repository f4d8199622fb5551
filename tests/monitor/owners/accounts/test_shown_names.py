from __future__ import annotations

import pytest
from django.contrib.auth.models import User

from monitor.facts.readings import GpuProcess
from monitor.models import OsAccount
from monitor.owners import rows
from monitor.owners.policy import attribute
from tests.builders import NOW
from tests.monitor.owners.identity.test_attribution import identity

pytestmark = pytest.mark.django_db


def test_accounts_with_the_name_of_their_user_are_shown_as_they_are(alice: User) -> None:
    assert rows.shown_names() == {}


def test_a_listed_account_is_shown_as_its_user(alice: User) -> None:
    OsAccount.objects.filter(user=alice).update(name="asmith")

    assert rows.shown_names() == {"asmith": "alice", "alice": "alice (OS account)"}


def test_an_account_is_not_taken_for_a_user_with_its_name(alice: User, bob: User) -> None:
    OsAccount.objects.filter(user=alice).delete()

    assert rows.shown_names() == {"alice": "alice (OS account)"}


def test_two_users_may_have_each_others_names(alice: User, bob: User) -> None:
    OsAccount.objects.all().delete()
    rows.assign(alice, "bob", NOW, "")
    rows.assign(bob, "alice", NOW, "")

    assert rows.shown_names() == {"bob": "alice", "alice": "bob"}


def test_processes_are_shown_with_the_user_of_their_account() -> None:
    process = GpuProcess(gpu_uuid="GPU-1", pid=200)
    (found,) = attribute([process], {200: identity(200, user="alice")}, [], {"alice": "a.smith"})

    assert found.user == "a.smith"
