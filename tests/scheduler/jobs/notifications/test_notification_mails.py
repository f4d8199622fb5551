"""Notifications on their whole way: from the end of a job to the mail that a mail server gets."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from django.contrib.auth.models import User

from monitor.incidents.alerts import steps
from monitor.incidents.alerts.senders import NetworkLimits, OutgoingMessage, send_all
from monitor.incidents.alerts.steps import encrypt
from monitor.models import Channel, Message
from scheduler.facts.jobs import NoticeKind
from scheduler.jobs.notifications import step as actions
from scheduler.jobs.notifications.step import JobNotifications
from tests import jobs_made
from tests.builders import NOW
from tests.smtp_server import MailServer, mail_server

pytestmark = pytest.mark.django_db
LATER = NOW + timedelta(minutes=10)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[MailServer]:
    with mail_server(tmp_path) as made:
        yield made


@pytest.fixture(autouse=True)
def channel(server: MailServer) -> Channel:
    address = f"mailto://127.0.0.1:{server.port}?mode=insecure&from=gpus@example.org"
    return Channel.objects.create(
        name="mail", is_mail=True, to_owners=True, encrypted_address=encrypt(address)
    )


def person(name: str) -> User:
    user = User.objects.create(username=name, email=f"{name}@example.org")
    actions.save(user, (NoticeKind.FAILED,), by_mail=True, address=None)
    return user


def deliver() -> int:
    """Write the notifications of the events so far, and send those that are due."""

    def send(letters: dict[int, OutgoingMessage], _limit_s: float) -> dict[int, str | None]:
        return send_all(letters, 20, NetworkLimits(("127.0.0.0/8",)))

    step = JobNotifications("gpubox", lambda task: None)
    step.judge(None, LATER)
    return steps.send_due(send, LATER)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def first_look(channel: Channel) -> None:
    JobNotifications("gpubox", lambda task: None).judge(None, NOW)


def test_the_mail_server_gets_the_mail_of_a_failed_job(server: MailServer) -> None:
    alice = person("alice")
    job = jobs_made.finished(alice, "failed", exit_code=7)

    assert deliver() == 1
    (mail,) = server.mails()
    assert (mail.sender, mail.receivers) == ("gpus@example.org", ["alice@example.org"])
    assert mail.message["Subject"] == f"Job {job.pk} ({job.name}) failed"
    assert "alice@example.org" in mail.message["To"]
    assert "exit code 7" in mail.text
    assert Message.objects.get().state == Message.State.SENT


def test_a_mail_that_the_server_refuses_is_tried_again(server: MailServer) -> None:
    jobs_made.finished(person("refused"), "failed", exit_code=7)

    assert deliver() == 1
    message = Message.objects.get()
    assert (server.mails(), message.state) == ([], Message.State.WAITING)
    assert message.due_at > LATER
    assert message.problem
    assert "127.0.0.1" not in message.problem
