"""An `Idempotency-Key` makes it safe to ask again when an acknowledgement was lost."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
import time_machine
from django.contrib.auth.models import User
from django.test import Client as Browser
from django.utils import timezone

from gpucoord_site.cli import client as rest_client
from gpucoord_site.cli.client import Answer, Client, NeverReached, NotReachable, RequestFailed
from monitor.owners import rows
from scheduler.models import Job, SubmissionKey
from scheduler.submission.intake import actions as intake_actions

BODY = {"command": "python train.py"}


def submit(user: User, key: str | None, body: dict[str, Any] | None = None) -> Any:
    headers = {"authorization": f"Bearer {rows.create_token(user, timezone.now())[1]}"}
    if key is not None:
        headers["idempotency-key"] = key
    text = json.dumps(body or BODY)
    return Browser().post("/api/jobs/", text, "application/json", headers=headers)


pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("data")]


def test_the_same_key_and_body_give_the_same_answer(alice: User) -> None:
    first, again = submit(alice, "k-1"), submit(alice, "k-1")

    assert (first.status_code, again.status_code) == (201, 201)
    assert first.json() == again.json()
    assert "Idempotency-Replayed" not in first
    assert again["Idempotency-Replayed"] == "true"
    assert Job.objects.count() == 1


def test_the_answer_stays_the_same_when_the_job_has_moved_on(alice: User) -> None:
    first = submit(alice, "k-1", BODY | {"array": "0-2"})
    Job.objects.update(state="finished", outcome="cancelled", ended_at=timezone.now())

    assert submit(alice, "k-1", BODY | {"array": "0-2"}).json() == first.json()
    assert Job.objects.count() == 3


def test_the_same_key_with_another_body_is_refused(alice: User) -> None:
    submit(alice, "k-1")

    answer = submit(alice, "k-1", BODY | {"priority": 1})

    assert answer.status_code == 422
    (error,) = answer.json()["errors"]
    assert error["field"] == "Idempotency-Key"
    assert "another body" in error["message"]
    assert Job.objects.count() == 1


def test_keys_of_different_users_are_independent(alice: User, bob: User) -> None:
    assert submit(alice, "k-1").json()["id"] != submit(bob, "k-1").json()["id"]


def test_without_a_key_each_request_makes_a_job(alice: User) -> None:
    assert submit(alice, None).json()["id"] != submit(alice, None).json()["id"]
    assert not SubmissionKey.objects.exists()


def test_a_refused_job_does_not_use_the_key(alice: User) -> None:
    assert submit(alice, "k-1", BODY | {"gpus": -1}).status_code == 422

    assert submit(alice, "k-1").status_code == 201


def test_keys_are_forgotten_after_a_day(alice: User) -> None:
    now = timezone.now()
    with time_machine.travel(now, tick=False):
        submit(alice, "k-1")
        submit(alice, "k-2")
    with time_machine.travel(now + intake_actions.KEPT + timedelta(seconds=1), tick=False):
        assert submit(alice, "k-1").json()["id"] == Job.objects.order_by("-id")[0].pk

    assert SubmissionKey.objects.count() == 1
    assert Job.objects.count() == 3


@pytest.mark.parametrize("key", ["", "x" * 256, "a b", "\x7f"])
def test_a_key_is_short_and_printable(alice: User, key: str) -> None:
    assert submit(alice, key).status_code == 422
    assert not Job.objects.exists()


def test_two_requests_at_the_same_time_make_one_job(
    alice: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one does not see the first's key before it stores its own."""
    first = submit(alice, "k-1").json()
    find, calls = intake_actions.jobs_of_key, []

    def find_nothing_at_first(*args: Any) -> Job | None:
        calls.append(args)
        return None if len(calls) == 1 else find(*args)

    monkeypatch.setattr(intake_actions, "jobs_of_key", find_nothing_at_first)

    assert submit(alice, "k-1").json() == first
    assert len(calls) == 2
    assert Job.objects.count() == 1


class FakeTransport:
    """Gives these answers, and keeps the headers of the requests."""

    url = "http://gpu"

    def __init__(self, answers: Sequence[Any]) -> None:
        self._answers = list(answers)
        self.headers: dict[str, str] = {}
        self.seen: list[dict[str, str]] = []

    def request(self, _method: str, _path: str, **options: Any) -> Answer:
        self.seen.append(options.get("headers") or {})
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def _answer(status: int, body: Any) -> Answer:
    return Answer(status, {}, json.dumps(body).encode())


def _client(monkeypatch: pytest.MonkeyPatch, *answers: Any) -> tuple[Client, list[dict[str, str]]]:
    """A client whose server gives these answers, and the headers of its requests."""
    monkeypatch.setattr(rest_client, "pause", lambda _s: None)
    made = Client("http://gpu", "t")
    fake = FakeTransport(answers)
    made._http = fake  # type: ignore[assignment]
    return made, fake.seen


DONE = _answer(201, {"id": 7})


def test_submit_asks_again_with_the_same_key(monkeypatch: pytest.MonkeyPatch) -> None:
    away = _answer(503, {"detail": "The database does not answer."})
    client, requests = _client(monkeypatch, NotReachable("t"), away, NeverReached("c"), DONE)

    assert client.submit(BODY) == 7

    keys = {headers["Idempotency-Key"] for headers in requests}
    assert len(requests) == 4
    assert len(keys) == 1


def test_each_submission_has_its_own_key(monkeypatch: pytest.MonkeyPatch) -> None:
    client, requests = _client(monkeypatch, DONE, DONE)
    client.submit(BODY)
    client.submit(BODY)

    assert requests[0]["Idempotency-Key"] != requests[1]["Idempotency-Key"]


def test_submit_does_not_wait_for_a_server_that_never_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client, requests = _client(monkeypatch, NeverReached("refused"), DONE)

    with pytest.raises(NotReachable):
        client.submit(BODY)
    assert len(requests) == 1


def test_submit_gives_up_in_the_end_and_says_that_the_job_may_be_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client, _ = _client(monkeypatch, *[NotReachable("t")] * 20)

    with pytest.raises(NotReachable, match="may have been submitted"):
        client.submit(BODY)


def test_submit_does_not_repeat_what_was_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = _answer(422, {"detail": "One field must be changed.", "errors": []})
    client, requests = _client(monkeypatch, refused, DONE)

    with pytest.raises(RequestFailed):
        client.submit(BODY)
    assert len(requests) == 1
