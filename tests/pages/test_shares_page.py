from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.test import Client
from django.urls import reverse
from django.utils import timezone
from time_machine import TimeMachineFixture

from monitor.models import AuditEntry
from scheduler.facts.jobs import Requirement
from scheduler.limits.quotas.policy import charging
from scheduler.models import DailyGpuUsage, HostCapacity, Quota, UsageShare
from tests import jobs_made
from tests.builders import GIB, gpu_uuid

HOUR = timedelta(hours=1)
pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("data")]


@pytest.fixture(autouse=True)
def shared_out(alice: User, bob: User, time_machine: TimeMachineFixture) -> None:
    # A day's GPU time is about a day that lasts for the whole test.
    time_machine.move_to(timezone.now().replace(hour=12))
    now = timezone.now()
    uuids = [gpu_uuid(i) for i in range(4)]
    HostCapacity.objects.create(host="gpubox", at=now, gpu_uuids=uuids, gpu_bytes=80 * GIB)
    Quota.objects.create(user=alice, share_pct=30, gpus=3, gpu_minutes=600, priority=4)
    Quota.objects.create(user=bob, jobs=77)
    jobs_made.running(alice, (0, 1), requirement=Requirement(gpus=2), time_limit=HOUR)
    UsageShare.objects.create(
        host="gpubox", owner="erin", usage=0.2, outside=1.0, seen_s=100, known_s=50
    )
    today = charging.day(now, "UTC").from_at
    DailyGpuUsage.objects.create(host="gpubox", owner="alice", from_at=today, job_s=6000)


def page(client: Client, **query: Any) -> str:
    response = client.get("/shares/", query)
    assert response.status_code == 200
    return response.content.decode()


def test_all_names_are_there_with_what_they_take(
    alice: User, as_user: Callable[[User], Client]
) -> None:
    html = page(as_user(alice))

    assert "the 4 GPUs" in html
    assert all(f">{name}</a>" in html for name in ("alice", "bob", "erin"))
    assert "50.0 %</span>" in html
    assert "50.0 % known" in html


def test_a_share_of_a_quota_is_shown_unchanged(
    alice: User, as_user: Callable[[User], Client]
) -> None:
    lines = as_user(alice).get("/api/shares/").json()["people"]

    assert {line["name"]: line["entitled"] for line in lines}["alice"] == 0.3


def test_ones_own_limits_stand_with_what_is_left_and_when_the_day_ends(
    alice: User, as_user: Callable[[User], Client]
) -> None:
    html = page(as_user(alice))

    assert "of 600" in html
    assert "GPU-minutes left today" in html
    assert "00:00:00 UTC" in html
    assert "Highest priority: 4 (high)." in html


def test_others_limits_are_for_operators(
    alice: User, root: User, as_user: Callable[[User], Client]
) -> None:
    assert "of 77" not in page(as_user(alice))
    assert "of 77" in page(as_user(root))


@pytest.mark.parametrize(
    ("sort", "order"),
    [
        ("name", ["alice", "bob", "erin"]),
        ("-name", ["erin", "bob", "alice"]),
        ("-now", ["alice", "erin", "bob"]),
    ],
)
def test_it_can_be_sorted(
    sort: str, order: list[str], alice: User, as_user: Callable[[User], Client]
) -> None:
    html = page(as_user(alice), sort=sort).partition("All users")[2]

    assert sorted(order, key=lambda name: html.index(f">{name}</a>")) == order


@pytest.mark.parametrize("sort", ["target", "-usage", "factor", "nonsense"])
def test_whatever_it_is_sorted_by_everybody_is_there(
    sort: str, alice: User, as_user: Callable[[User], Client]
) -> None:
    html = page(as_user(alice), sort=sort)

    assert all(f">{name}</a>" in html for name in ("alice", "bob", "erin"))


def test_a_crowd_that_has_and_wants_nothing_now_is_shown_when_asked_for(
    alice: User, as_user: Callable[[User], Client]
) -> None:
    for number in range(20):
        UsageShare.objects.create(host="gpubox", owner=f"guest{number}", usage=0.01)
    short, whole = page(as_user(alice)), page(as_user(alice), all="1", sort="name")

    # Bob is one of the quiet ones too.
    assert "21 inactive users are hidden" in short
    assert ">guest7</a>" not in short
    assert all(f">{name}</a>" in short for name in ("alice", "erin"))
    assert ">guest7</a>" in whole
    assert 'href="?sort=name">Hide 21' in whole


def test_usage_is_split_into_jobs_and_other_processes(
    alice: User, as_user: Callable[[User], Client]
) -> None:
    html = page(as_user(alice))

    assert 'title="2 of 4 GPUs, all by jobs"' in html
    assert 'title="1 of 4 GPUs, 1 by processes outside jobs"' in html


def test_it_says_so_while_no_gpu_has_been_read(
    alice: User, as_user: Callable[[User], Client]
) -> None:
    HostCapacity.objects.all().delete()

    assert "No GPUs found yet" in page(as_user(alice))


def test_rest_returns_all_shares_and_own_limits(
    alice: User, as_user: Callable[[User], Client]
) -> None:
    client = as_user(alice)
    shares = client.get("/api/shares/").json()
    quota = client.get("/api/quota/").json()

    people = {line["name"]: line for line in shares["people"]}
    assert (shares["gpus"], people["erin"]["now"], people["erin"]["target"]) == (4, 0.25, None)
    assert (quota["gpus"]["used"], quota["gpus"]["most"], quota["zone"]) == (2, 3, "UTC")
    assert quota["gpu_minutes"]["used"] == 100
    assert 370 < quota["gpu_minutes_left"] <= 600 - 100


def test_rest_keeps_others_limits_for_operators(
    alice: User, root: User, as_user: Callable[[User], Client]
) -> None:
    assert as_user(alice).get("/api/quota/", {"user": "bob"}).status_code == 403
    answer = as_user(root).get("/api/quota/", {"user": "bob"}).json()
    assert answer["jobs"] == {"used": 0, "most": 77, "committed": 0}


def form(**changes: Any) -> dict[str, Any]:
    return {"reserved_pct": "20"} | changes


def test_an_operator_sets_changes_and_removes_a_quota_and_all_is_audited(
    root: User, as_user: Callable[[User], Client]
) -> None:
    client, add = as_user(root), reverse("admin:scheduler_quota_add")
    client.post(add, form(gpus="2", memory_bytes="40GiB"))
    quota = Quota.objects.get(user=None)
    change = reverse("admin:scheduler_quota_change", args=[quota.pk])
    client.post(change, form(gpus="5", memory_bytes="40GiB"))
    client.post(reverse("admin:scheduler_quota_delete", args=[quota.pk]), {"post": "yes"})

    notes = AuditEntry.objects.filter(subject="quota of all other users").order_by("id")
    assert [n.action for n in notes] == ["QUOTA_SET", "QUOTA_CHANGED", "QUOTA_REMOVED"]
    assert [(n.before or {}).get("gpus") for n in notes] == [None, 2, 5]
    assert [(n.after or {}).get("memory_bytes") for n in notes] == [40 * GIB, 40 * GIB, None]
    assert not Quota.objects.filter(user=None).exists()


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        ({"memory_bytes": "a lot"}, "is not a size"),
        ({"share_pct": "130"}, "less than or equal to 100"),
        ({"gpus": "-1"}, "greater than or equal to 0"),
    ],
)
def test_a_quota_that_makes_no_sense_is_not_taken(
    typed: dict[str, str], says: str, root: User, as_user: Callable[[User], Client]
) -> None:
    html = as_user(root).post(reverse("admin:scheduler_quota_add"), form(**typed))

    assert says in html.content.decode()
    assert not Quota.objects.filter(user=None).exists()


def test_a_group_is_not_deleted_with_its_quota_unsaid(
    root: User, as_user: Callable[[User], Client]
) -> None:
    lab = Group.objects.create(name="lab")
    Quota.objects.create(group=lab, gpus=1)
    delete = reverse("admin:auth_group_delete", args=[lab.pk])
    html = as_user(root).post(delete, {"post": "yes"}).content.decode()

    assert "group lab" in html
    assert Quota.objects.filter(group=lab).exists()


def test_a_second_quota_of_one_person_is_not_taken(
    alice: User, root: User, as_user: Callable[[User], Client]
) -> None:
    html = as_user(root).post(reverse("admin:scheduler_quota_add"), form(user=str(alice.pk)))

    assert "There is a quota for these already" in html.content.decode()


def test_the_admin_shows_what_is_used_beside_each_limit(
    alice: User, root: User, as_user: Callable[[User], Client]
) -> None:
    quota = Quota.objects.get(user=alice)
    for _ in range(2):
        html = as_user(root).get(reverse("admin:scheduler_quota_change", args=[quota.pk]))
    listed = as_user(root).get(reverse("admin:scheduler_quota_changelist")).content.decode()

    assert html.content.decode().count("Now: 2.") == 1
    assert "<strong>3</strong><br>now 2" in listed
    assert "<strong>30 %</strong><br>now 50 %" in listed


def test_a_quota_stays_with_its_user(
    alice: User, bob: User, root: User, as_user: Callable[[User], Client]
) -> None:
    quota = Quota.objects.get(user=alice)
    change = reverse("admin:scheduler_quota_change", args=[quota.pk])
    as_user(root).post(change, form(user=str(bob.pk), gpus="9"))

    quota.refresh_from_db()
    assert (quota.user, quota.gpus) == (alice, 9)
