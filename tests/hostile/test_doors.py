"""No way of submitting or changing jobs gives more than the quota of the user."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from monitor.accounts.rows import tokens
from monitor.facts.accounts import TokenScope
from scheduler.models import Job, Quota

pytestmark = [pytest.mark.hostile, pytest.mark.django_db]
JOB = {"command": "true", "gpus": 0}
LIMITS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "priority": ({"priority": 2}, {"priority": 3}),
    "priority of operators": ({}, {"priority": 5}),
    "GPUs": ({"gpus": 1}, {"gpus": 2}),
}
Send = Callable[[str, str, dict[str, Any]], Any]


@pytest.fixture(params=["session", "token"])
def send(request: pytest.FixtureRequest, alice: User) -> Send:
    """A request of alice, by her session or by a token."""
    browser, headers = Client(), {}
    if request.param == "session":
        browser.force_login(alice)
    else:
        _, token = tokens.create_token(alice, timezone.now())
        headers = {"authorization": f"Bearer {token}"}

    def sent(method: str, path: str, body: dict[str, Any]) -> Any:
        return browser.generic(method, path, json.dumps(body), "application/json", headers=headers)

    return sent


@pytest.fixture(params=LIMITS)
def excess(request: pytest.FixtureRequest, alice: User) -> dict[str, Any]:
    """Fields of a job that the quota of alice does not allow."""
    quota, fields = LIMITS[request.param]
    Quota.objects.create(user=alice, **quota)
    return fields


def test_a_job_of_its_own_is_refused(send: Send, excess: dict[str, Any]) -> None:
    assert send("POST", "/api/jobs/", JOB | excess).status_code == 422
    assert send("POST", "/api/jobs/what-if/", JOB | excess).status_code in (200, 422)
    assert not Job.objects.exists()


def test_an_array_is_refused(send: Send, excess: dict[str, Any]) -> None:
    assert send("POST", "/api/jobs/", JOB | excess | {"array": "0-3"}).status_code == 422
    assert not Job.objects.exists()


def test_one_of_many_jobs_is_refused_with_all(send: Send, excess: dict[str, Any]) -> None:
    body = {"jobs": [JOB, JOB | excess, JOB]}

    assert send("POST", "/api/jobs/batch/", body).status_code == 422
    assert not Job.objects.exists()


def test_a_batch_of_items_is_refused(send: Send, excess: dict[str, Any]) -> None:
    body = JOB | excess | {"items": ["a", "b"]}

    assert send("POST", "/api/batches/", body).status_code == 422
    assert not Job.objects.exists()


def test_a_waiting_job_is_not_changed_beyond_the_quota(send: Send, excess: dict[str, Any]) -> None:
    number = send("POST", "/api/jobs/", JOB | {"priority": 1}).json()["id"]

    assert send("PATCH", f"/api/jobs/{number}/", excess).status_code == 422
    job = Job.objects.get(pk=number)
    assert (job.priority, job.gpus) == (1, 0)


def test_a_job_waits_for_no_job_of_its_own_to_pass_the_limit(send: Send, alice: User) -> None:
    """Jobs that wait for others, with tags, or held, count for the limit of the queue."""
    Quota.objects.create(user=alice, queued=3)
    first = send("POST", "/api/jobs/", JOB).json()["id"]
    ways = [
        JOB | {"after": [first]}, JOB | {"tags": {"a": "b"}}, JOB, JOB | {"array": "0-1"},
        JOB | {"begin": "in 1h"}, JOB | {"after_success": [first]},
    ]  # fmt: skip
    answers = [send("POST", "/api/jobs/", body).status_code for body in ways]
    answers.append(send("POST", "/api/jobs/batch/", {"jobs": [JOB, JOB]}).status_code)

    assert answers == [201, 201, 429, 429, 429, 429, 429]
    assert Job.objects.count() == 3


def test_a_token_that_reads_submits_nothing(alice: User) -> None:
    _, token = tokens.create_token(alice, timezone.now(), scopes=[TokenScope.READ])
    headers = {"authorization": f"Bearer {token}"}
    for path, body in (("/api/jobs/", JOB), ("/api/batches/", JOB | {"items": ["a"]})):
        answer = Client().post(path, json.dumps(body), "application/json", headers=headers)
        assert answer.status_code == 403
    assert not Job.objects.exists()
