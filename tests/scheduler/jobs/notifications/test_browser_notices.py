"""Messages to the open pages of a user."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from monitor.models import Message
from scheduler.facts.jobs import NoticeKind
from scheduler.jobs.notifications import step as rows
from scheduler.jobs.notifications.policy import MOST_PER_HOUR, Letter
from scheduler.jobs.notifications.step import JobNotifications
from scheduler.models import BrowserNotice, Job
from tests import jobs_made
from tests.builders import NOW

pytestmark = pytest.mark.django_db
LATER = NOW + timedelta(minutes=10)
REST = "/api/account/notifications/recent/"
AsUser = Callable[[User], Client]


@pytest.fixture
def step(db: None) -> JobNotifications:
    made = JobNotifications("gpubox", lambda task: None)
    made.judge(None, NOW)
    return made


def choose(person: User, *kinds: NoticeKind, by_browser: bool = True) -> None:
    rows.save(person, kinds, by_mail=True, by_browser=by_browser, address=None)


def listed(client: Client, after: int = 0) -> dict[str, Any]:
    answer = client.get(REST, {"after": after})
    assert answer.status_code == 200
    body: dict[str, Any] = answer.json()
    return body


def titles(client: Client, after: int = 0) -> list[str]:
    return [item["title"] for item in listed(client, after)["items"]]


def _finished(alice: User) -> Job:
    return jobs_made.finished(alice)


def _failed(alice: User) -> Job:
    return jobs_made.finished(alice, "failed")


def _preempted(alice: User) -> Job:
    from tests.scheduler.execution.test_outcomes import _ask, _end

    job = jobs_made.running(alice)
    _ask(job, for_job=jobs_made.waiting(alice))
    return _end(job, exit_code=85, yielded=True)


def _soon(alice: User) -> Job:
    job = jobs_made.waiting(alice)
    Job.objects.filter(pk=job.pk).update(predicted_start_at=LATER + timedelta(minutes=5))
    return job


@pytest.mark.parametrize(
    ("kind", "happen", "word"),
    [
        (NoticeKind.FINISHED, _finished, "ended"),
        (NoticeKind.FAILED, _failed, "failed"),
        (NoticeKind.PREEMPTED, _preempted, "interrupted"),
        (NoticeKind.STARTS_SOON, _soon, "expected to start soon"),
    ],
)
def test_each_kind_is_listed_for_the_owner(
    step: JobNotifications,
    alice: User,
    as_user: AsUser,
    kind: NoticeKind,
    happen: Callable[[User], Job],
    word: str,
) -> None:
    choose(alice, kind)
    job = happen(alice)
    assert step.judge(None, LATER) == 1

    (item,) = listed(as_user(alice))["items"]
    assert item["title"] == f"Job {job.pk} ({job.name}) {word}"
    assert item["path"] == f"/jobs/{job.pk}/"
    assert not Message.objects.exists()


def test_a_notice_is_stored_once(step: JobNotifications, alice: User, as_user: AsUser) -> None:
    choose(alice, NoticeKind.STARTS_SOON)
    _soon(alice)
    step.judge(None, LATER)
    step.judge(None, LATER + timedelta(minutes=2))

    assert len(titles(as_user(alice))) == 1


def test_without_the_choice_nothing_is_stored_or_listed(
    step: JobNotifications, alice: User, as_user: AsUser
) -> None:
    choose(alice, NoticeKind.FINISHED, by_browser=False)
    _finished(alice)

    assert step.judge(None, LATER) == 0
    assert listed(as_user(alice)) == {"enabled": False, "newest": 0, "items": []}


def test_one_job_can_choose_events_of_its_own(
    step: JobNotifications, alice: User, as_user: AsUser
) -> None:
    choose(alice)
    job = jobs_made.running(alice, notify=(NoticeKind.FAILED,))
    jobs_made.end(job, "failed", exit_code=7)
    _failed(alice)
    step.judge(None, LATER)

    assert titles(as_user(alice)) == [f"Job {job.pk} ({job.name}) failed"]


def test_other_users_and_operators_read_their_own_only(
    step: JobNotifications, alice: User, bob: User, root: User, as_user: AsUser
) -> None:
    for person in (alice, bob, root):
        choose(person, NoticeKind.FINISHED)
    job = _finished(alice)
    step.judge(None, LATER)

    assert titles(as_user(alice)) == [f"Job {job.pk} ({job.name}) ended"]
    assert [listed(as_user(person))["newest"] for person in (bob, root)] == [0, 0]


def test_a_visitor_is_refused(client: Client) -> None:
    assert client.get(REST).status_code == 401


def test_a_page_asks_only_for_what_it_has_not_shown(
    step: JobNotifications, alice: User, as_user: AsUser
) -> None:
    choose(alice, NoticeKind.FINISHED)
    _finished(alice)
    step.judge(None, LATER)
    shown = listed(as_user(alice))["newest"]
    newer = _finished(alice)
    step.judge(None, LATER)

    assert titles(as_user(alice), after=shown) == [f"Job {newer.pk} ({newer.name}) ended"]


def test_several_jobs_share_one_notice_that_leads_to_the_list(
    step: JobNotifications, alice: User, as_user: AsUser
) -> None:
    choose(alice, NoticeKind.FINISHED)
    for _ in range(5):
        _finished(alice)
    step.judge(None, LATER)

    (item,) = listed(as_user(alice))["items"]
    assert (item["title"], item["path"]) == ("5 jobs ended", "/jobs/")


def _fill(alice: User, count: int, at: Any = LATER) -> None:
    rows_ = (
        BrowserNotice(user=alice, about=f"job:{n}:failed:{n}", title=f"{n}", created_at=at)
        for n in range(count)
    )
    BrowserNotice.objects.bulk_create(rows_)


def test_an_answer_has_the_newest_twenty(alice: User, as_user: AsUser) -> None:
    choose(alice)
    _fill(alice, 30)

    assert titles(as_user(alice)) == [str(n) for n in range(10, 30)]


def test_notices_of_a_day_ago_are_deleted(
    step: JobNotifications, alice: User, as_user: AsUser
) -> None:
    choose(alice, NoticeKind.FINISHED)
    _fill(alice, 3, NOW - timedelta(days=1))
    job = _finished(alice)
    step.judge(None, LATER)

    assert titles(as_user(alice)) == [f"Job {job.pk} ({job.name}) ended"]


def test_a_user_has_at_most_a_thousand_notices(step: JobNotifications, alice: User) -> None:
    choose(alice, NoticeKind.FINISHED)
    _fill(alice, rows.MOST_KEPT, NOW - timedelta(hours=2))
    _finished(alice)
    step.judge(None, LATER)

    kept = BrowserNotice.objects.order_by("pk")
    assert kept.count() == rows.MOST_KEPT
    assert kept[0].title == "1"


def test_notices_count_for_the_messages_of_an_hour(step: JobNotifications, alice: User) -> None:
    choose(alice, NoticeKind.FINISHED)
    _fill(alice, MOST_PER_HOUR - 2)
    for _ in range(3):
        _finished(alice)

    assert step.judge(None, LATER) == 2


def test_the_notices_are_forgotten_when_the_user_wants_them_no_more(alice: User) -> None:
    choose(alice)
    _fill(alice, 2)
    choose(alice, by_browser=False)

    assert not BrowserNotice.objects.exists()


def test_rest_and_the_page_change_the_choice(alice: User, as_user: AsUser) -> None:
    client = as_user(alice)
    path = "/api/account/notifications/"
    assert client.put(path, {"by_browser": True}, "application/json").json()["by_browser"]
    assert client.put(path, {"kinds": []}, "application/json").json()["by_browser"]

    client.post("/account/notifications/", {"by_mail": "on"})
    assert not rows.settings_of(alice).by_browser
    client.post("/account/notifications/", {"by_browser": "on"})
    assert rows.settings_of(alice).by_browser


def test_a_report_is_no_notice_of_the_browser(alice: User, as_user: AsUser) -> None:
    choose(alice)
    letter = Letter("alice", "report:7", "Your GPU use", "text", "report:7")

    assert rows.store(letter, rows.recipients_of(["alice"])["alice"], None, NOW) == 0
    assert titles(as_user(alice)) == []


def test_a_page_that_asks_does_not_keep_the_session_alive(alice: User, as_user: AsUser) -> None:
    client = as_user(alice)
    client.get(REST, headers={"HX-Request": "true"})
    before = dict(client.session)
    client.get(REST, headers={"HX-Request": "true"})

    assert dict(client.session) == before
