from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User

from monitor.incidents.alerts import steps
from monitor.incidents.alerts.steps import encrypt
from monitor.journal.rows import events
from monitor.models import Channel, Message
from scheduler.facts.jobs import NoticeKind
from scheduler.jobs.notifications import step as rows
from scheduler.jobs.notifications.policy import MOST_PER_HOUR
from scheduler.jobs.notifications.step import JobNotifications
from scheduler.models import Job
from tests import jobs_made
from tests.builders import NOW

pytestmark = pytest.mark.django_db
LATER = NOW + timedelta(minutes=10)
FINISHED = NoticeKind.FINISHED


@pytest.fixture
def alice(db: None) -> User:
    return User.objects.create(username="alice", email="alice@example.org")


@pytest.fixture(autouse=True)
def mail(db: None) -> Channel:
    return Channel.objects.create(
        name="mail",
        is_mail=True,
        to_owners=True,
        encrypted_address=encrypt("mailto://u:p@example.org"),
    )


@pytest.fixture
def step(db: None) -> JobNotifications:
    made = JobNotifications("gpubox", lambda task: None)
    made.judge(None, NOW)
    return made


def wants(person: User, *kinds: NoticeKind, **more: Any) -> None:
    rows.save(person, kinds, **({"by_mail": True, "address": None} | more))


def notifications() -> list[tuple[str, str]]:
    return list(Message.objects.order_by("id").values_list("title", "receiver"))


def test_a_user_who_wants_it_is_told_of_the_end_of_a_job(
    step: JobNotifications, alice: User
) -> None:
    wants(alice, FINISHED)
    job = jobs_made.finished(alice)

    assert step.judge(None, LATER) == 1
    assert notifications() == [(f"Job {job.pk} ({job.name}) ended", "alice@example.org")]


def test_a_user_who_wants_nothing_is_told_nothing(step: JobNotifications, alice: User) -> None:
    jobs_made.finished(alice)

    assert step.judge(None, LATER) == 0


def test_one_job_can_ask_for_it_alone(step: JobNotifications, alice: User) -> None:
    job = jobs_made.running(alice, notify=(NoticeKind.FAILED,))
    jobs_made.end(job, "failed", exit_code=7)
    jobs_made.finished(alice, "failed")

    assert step.judge(None, LATER) == 1
    assert notifications()[0][0] == f"Job {job.pk} ({job.name}) failed"


def test_an_event_is_told_once_even_by_a_new_step(step: JobNotifications, alice: User) -> None:
    wants(alice, FINISHED)
    jobs_made.finished(alice)
    step.judge(None, LATER)

    JobNotifications("other", lambda task: None).judge(None, LATER)

    assert len(notifications()) == 1


def test_jobs_that_were_told_together_are_not_told_with_the_next(
    step: JobNotifications, alice: User
) -> None:
    wants(alice, FINISHED)
    for _ in range(5):
        jobs_made.finished(alice)
    step.judge(None, LATER)
    last = jobs_made.finished(alice)

    step.judge(None, LATER)

    titles = [title for title, _ in notifications()]
    assert titles == ["5 jobs ended", f"Job {last.pk} ({last.name}) ended"]


def test_jobs_that_ended_before_the_user_wanted_it_are_not_told(
    step: JobNotifications, alice: User
) -> None:
    jobs_made.finished(alice)
    step.judge(None, LATER)
    wants(alice, FINISHED)
    later = jobs_made.finished(alice)

    step.judge(None, LATER)

    assert [title for title, _ in notifications()] == [f"Job {later.pk} ({later.name}) ended"]


def test_a_message_that_could_not_be_written_is_written_later(
    step: JobNotifications, alice: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    wants(alice, FINISHED)
    jobs_made.finished(alice)
    with monkeypatch.context() as broken:
        broken.setattr(rows, "store", lambda *_: 1 / 0)
        step.judge(None, LATER)
    assert notifications() == []

    step.judge(None, LATER + timedelta(minutes=1))

    assert len(notifications()) == 1


def test_events_from_before_the_first_look_are_not_told(alice: User) -> None:
    wants(alice, FINISHED)
    jobs_made.finished(alice)

    assert JobNotifications("gpubox", lambda task: None).judge(None, LATER) == 0


def test_a_user_without_a_mail_address_gets_no_mail(step: JobNotifications) -> None:
    bob = User.objects.create(username="bob")
    wants(bob, FINISHED)
    jobs_made.finished(bob)

    assert step.judge(None, LATER) == 0


def test_an_own_service_gets_the_message_too(step: JobNotifications, alice: User) -> None:
    wants(alice, FINISHED, address="jsons://example.org/hook")
    jobs_made.finished(alice)

    assert step.judge(None, LATER) == 2
    assert {message.channel.owner for message in Message.objects.all()} == {None, alice}


def test_alerts_do_not_go_to_a_users_own_service(alice: User) -> None:
    wants(alice, FINISHED, address="jsons://example.org/hook")
    Channel.objects.update(least="info")
    Channel.objects.filter(owner=None).delete()
    events.add("GPU_LOST", "GPU 1 is lost", now=NOW, severity="error")

    assert steps.write(LATER) == 0


@pytest.mark.parametrize("address", ["dbus://", "syslog://", "mailto://u:p@example.org", "no"])
def test_an_address_that_acts_on_the_server_is_refused(alice: User, address: str) -> None:
    with pytest.raises(rows.InvalidService, match="Write an address of one of these"):
        wants(alice, FINISHED, address=address)


def test_the_address_is_stored_encrypted(alice: User) -> None:
    wants(alice, FINISHED, address="jsons://example.org/s3cret")

    assert "s3cret" not in Channel.objects.get(owner=alice).encrypted_address


def test_an_empty_address_removes_the_service(alice: User) -> None:
    wants(alice, FINISHED, address="jsons://example.org/hook")
    wants(alice, FINISHED, address="")

    assert not Channel.objects.filter(owner=alice).exists()


def test_no_more_messages_are_sent_than_the_hour_allows(
    step: JobNotifications, alice: User
) -> None:
    wants(alice, FINISHED)
    for _ in range(MOST_PER_HOUR - 2):
        jobs_made.finished(alice)
        assert step.judge(None, LATER) == 1
    for _ in range(3):
        jobs_made.finished(alice)

    assert step.judge(None, LATER) == 2


def test_a_waiting_job_that_is_expected_soon_is_told_once(
    step: JobNotifications, alice: User
) -> None:
    wants(alice, NoticeKind.STARTS_SOON)
    job = jobs_made.waiting(alice)
    Job.objects.filter(pk=job.pk).update(predicted_start_at=LATER + timedelta(minutes=8))

    assert step.judge(None, LATER) == 1
    assert step.judge(None, LATER + timedelta(minutes=2)) == 0
    assert len(notifications()) == 1


def test_many_jobs_that_are_expected_soon_are_told_once(
    step: JobNotifications, alice: User
) -> None:
    wants(alice, NoticeKind.STARTS_SOON)
    jobs = [jobs_made.waiting(alice) for _ in range(6)]
    Job.objects.update(predicted_start_at=LATER + timedelta(minutes=8))
    step.judge(None, LATER)
    Job.objects.filter(pk=jobs[0].pk).update(state="finished", outcome="cancelled", ended_at=LATER)

    step.judge(None, LATER + timedelta(minutes=2))

    assert [title for title, _ in notifications()] == ["6 jobs expected to start soon"]


def test_a_job_that_is_expected_later_is_not_told(step: JobNotifications, alice: User) -> None:
    wants(alice, NoticeKind.STARTS_SOON)
    job = jobs_made.waiting(alice)
    Job.objects.filter(pk=job.pk).update(predicted_start_at=LATER + timedelta(hours=1))

    assert step.judge(None, LATER) == 0
