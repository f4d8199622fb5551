from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from axes.models import AccessLog
from django.apps import apps
from django.contrib import admin
from django.contrib.auth.models import Group, Permission, User
from django.test import Client
from django.urls import NoReverseMatch, reverse

from monitor.models import ApiToken
from monitor.owners import rows
from scheduler.models import SavedView
from tests import jobs_made
from tests.builders import NOW, PASSWORD

pytestmark = pytest.mark.django_db
BOXES = ("is_staff", "is_superuser")


@pytest.fixture
def staff(bob: User, as_user: Callable[[User], Client]) -> Client:
    """A staff member with every permission on users, groups, tokens and queued tasks."""
    bob.is_staff = True
    bob.save()
    apps_allowed = ("auth", "monitor", "django_q")
    granted = Permission.objects.filter(content_type__app_label__in=apps_allowed)
    bob.user_permissions.set(granted)
    return as_user(bob)


@pytest.fixture
def browser_of_root(root: User, as_user: Callable[[User], Client]) -> Client:
    return as_user(root)


def change_url(user: User) -> str:
    return reverse("admin:auth_user_change", args=[user.pk])


def form_of(user: User, **changes: object) -> dict[str, object]:
    values = {
        "username": user.username,
        "email": user.email,
        "first_name": user.first_name,
        "last_name": user.last_name,
        "date_joined_0": "2026-01-01",
        "date_joined_1": "00:00:00",
        **{name: "on" for name in ("is_active", *BOXES) if getattr(user, name)},
    }
    return values | changes


def test_queued_tasks_and_schedules_have_no_admin_page(staff: Client) -> None:
    models = list(apps.get_app_config("django_q").get_models())

    assert staff.get("/admin/django_q/schedule/add/").status_code == 404
    assert [m for m in models if admin.site.is_registered(m)] == []
    with pytest.raises(NoReverseMatch):
        reverse("admin:django_q_schedule_add")


@pytest.mark.parametrize("box", BOXES)
def test_staff_cannot_give_themselves_more_rights(staff: Client, bob: User, box: str) -> None:
    bob.is_staff = True
    group = Group.objects.create(name="operators")
    permission = Permission.objects.get(codename="add_job")
    form = form_of(bob, **{box: "on"}, groups=[group.pk], user_permissions=[permission.pk])
    staff.post(change_url(bob), form)

    bob = User.objects.get(pk=bob.pk)
    assert not bob.is_superuser
    assert not bob.groups.exists()
    assert not bob.user_permissions.filter(pk=permission.pk).exists()


def test_staff_can_change_the_email_of_a_user_but_not_the_user_name(
    staff: Client, alice: User
) -> None:
    form = form_of(alice, email="new@example.org", username="root", is_staff="on")
    response = staff.post(change_url(alice), form)

    alice.refresh_from_db()
    assert response.status_code == 302
    assert (alice.email, alice.username, alice.is_staff) == ("new@example.org", "alice", False)


def test_a_superuser_can_change_rights_and_user_names(
    root: User, alice: User, as_user: Callable[[User], Client]
) -> None:
    form = form_of(alice, username="alicia", is_staff="on")
    response = as_user(root).post(change_url(alice), form)

    alice.refresh_from_db()
    assert response.status_code == 302
    assert (alice.username, alice.is_staff) == ("alicia", True)


def test_staff_cannot_change_or_delete_a_superuser(staff: Client, root: User) -> None:
    form = form_of(root, email="evil@example.org")
    delete = reverse("admin:auth_user_delete", args=[root.pk])

    assert staff.post(change_url(root), form).status_code == 403
    assert staff.post(delete, {"post": "yes"}).status_code == 403
    assert User.objects.get(pk=root.pk).email == "root@example.org"


def test_staff_cannot_delete_a_superuser_from_the_list(staff: Client, root: User) -> None:
    form = {"action": "delete_selected", "_selected_action": [root.pk], "post": "yes"}
    staff.post(reverse("admin:auth_user_changelist"), form)

    assert User.objects.filter(pk=root.pk).exists()


@pytest.mark.parametrize("name", ["root", "alice"])
def test_staff_cannot_set_the_password_of_another_user(
    staff: Client, root: User, alice: User, name: str
) -> None:
    user = User.objects.get(username=name)
    form = {
        "password1": "another-long-one",
        "password2": "another-long-one",
        "usable_password": "true",
    }
    response = staff.post(reverse("admin:auth_user_password_change", args=[user.pk]), form)

    user.refresh_from_db()
    assert response.status_code == 403
    assert user.check_password(PASSWORD)


def test_staff_do_not_see_password_hashes(staff: Client, alice: User) -> None:
    page = staff.get(change_url(alice)).content.decode()

    assert alice.password not in page
    assert "md5" not in page


def test_staff_cannot_add_users_or_groups(staff: Client) -> None:
    assert staff.get(reverse("admin:auth_user_add")).status_code == 403
    assert staff.get(reverse("admin:auth_group_add")).status_code == 403


def test_staff_cannot_change_the_permissions_of_a_group(staff: Client) -> None:
    group = Group.objects.create(name="operators")
    form = {"name": "operators", "permissions": [Permission.objects.all()[0].pk]}
    response = staff.post(reverse("admin:auth_group_change", args=[group.pk]), form)

    assert response.status_code == 403
    assert not group.permissions.exists()


def test_staff_cannot_revoke_or_change_the_token_of_a_superuser(staff: Client, root: User) -> None:
    row, _ = rows.create_token(root, NOW, name="backup")
    change = reverse("admin:monitor_apitoken_change", args=[row.pk])
    delete = reverse("admin:monitor_apitoken_delete", args=[row.pk])
    listed = {"action": "delete_selected", "_selected_action": [row.pk], "post": "yes"}

    assert staff.post(change, {"name": "mine"}).status_code == 403
    assert staff.post(delete, {"post": "yes"}).status_code == 403
    staff.post(reverse("admin:monitor_apitoken_changelist"), listed)
    assert ApiToken.objects.get(pk=row.pk).name == "backup"


def test_staff_can_revoke_the_token_of_an_ordinary_user(staff: Client, alice: User) -> None:
    row, _ = rows.create_token(alice, NOW)

    staff.post(reverse("admin:monitor_apitoken_delete", args=[row.pk]), {"post": "yes"})

    assert not ApiToken.objects.exists()


def test_the_admin_says_that_a_user_with_jobs_is_deactivated_instead(
    browser_of_root: Client, alice: User
) -> None:
    jobs_made.finished(alice)
    url = reverse("admin:auth_user_delete", args=[alice.pk])

    page = browser_of_root.get(url).content.decode()
    browser_of_root.post(url, {"post": "yes"})

    assert "alice: 1 job" in page
    assert "Deactivate the user instead" in page
    assert change_url(alice) in page
    assert User.objects.filter(pk=alice.pk).exists()


def test_selected_users_with_jobs_are_not_deleted_and_the_page_says_why(
    browser_of_root: Client, alice: User, bob: User
) -> None:
    jobs_made.finished(alice)
    form = {"action": "delete_selected", "_selected_action": [alice.pk, bob.pk]}

    page = browser_of_root.post(reverse("admin:auth_user_changelist"), form).content.decode()
    browser_of_root.post(reverse("admin:auth_user_changelist"), form | {"post": "yes"})

    assert "alice: 1 job" in page
    assert "Deactivate the user instead" in page
    assert User.objects.filter(pk__in=[alice.pk, bob.pk]).count() == 2


def test_a_user_with_nothing_but_personal_settings_can_be_deleted(
    browser_of_root: Client, alice: User
) -> None:
    SavedView.objects.create(user=alice, name="mine", query="mine=1")
    url = reverse("admin:auth_user_delete", args=[alice.pk])

    response = browser_of_root.post(url, {"post": "yes"})

    assert response.status_code == 302
    assert not User.objects.filter(pk=alice.pk).exists()


def test_titles_of_the_access_log_have_the_users_time(browser_of_root: Client, root: User) -> None:
    row = AccessLog.objects.create(username="alice", user_agent="x", path_info="/login/")
    AccessLog.objects.filter(pk=row.pk).update(attempt_time=datetime(2026, 7, 1, 22, tzinfo=UTC))
    browser_of_root.cookies["timezone"] = "Europe/Berlin"

    page = browser_of_root.get(reverse("admin:axes_accesslog_change", args=[row.pk]))

    assert "alice, 2 Jul 2026 00:00:00 CEST" in page.content.decode()
    assert "2026-07-01 22:00:00 UTC" in page.content.decode()
    assert "22:00:00+00:00" not in page.content.decode().replace("2026-07-01T22:00:00+00:00", "")
