from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from monitor.journal.rows import events
from monitor.owners import rows
from tests.builders import NOW, gpu_uuid

pytestmark = pytest.mark.django_db


def ask(user: User, **query: Any) -> Any:
    _, token = rows.create_token(user, NOW)
    return Client().get("/api/events/", query, headers={"authorization": f"Bearer {token}"})


def kinds(user: User, **query: Any) -> list[str]:
    return [event["kind"] for event in ask(user, **query).json()["events"]]


@pytest.fixture
def three() -> None:
    events.add("GPU_LOST", "GPU 1 is lost.", now=NOW, severity="error", gpu_uuid=gpu_uuid(1))
    later = NOW + timedelta(minutes=1)
    events.add("JOB_STARTED", "Job 7 (x) started", now=later, job_ref="7", owner="bob")
    events.add("GPU_FOUND", "GPU 1 is back.", now=NOW + timedelta(minutes=2), host="gpubox")


def test_events_are_listed_newest_first(alice: User, three: None) -> None:
    assert kinds(alice) == ["GPU_FOUND", "JOB_STARTED", "GPU_LOST"]


def test_an_event_names_its_subject(alice: User, three: None) -> None:
    [event] = ask(alice, kind="GPU_LOST").json()["events"]

    assert event.pop("id") > 0
    assert event == {
        "at": "2026-03-02T12:00:00Z",
        "kind": "GPU_LOST",
        "severity": "error",
        "text": "GPU 1 is lost.",
        "host": None,
        "gpu_uuid": gpu_uuid(1),
        "job": None,
        "owner": None,
    }


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ({"kind": "JOB_STARTED"}, ["JOB_STARTED"]),
        ({"since": "2026-03-02T12:01:00Z"}, ["GPU_FOUND", "JOB_STARTED"]),
        ({"since": "2026-03-02T14:01:30+02:00"}, ["GPU_FOUND"]),
        ({"limit": 1}, ["GPU_FOUND"]),
        ({"gpu": gpu_uuid(1)}, ["GPU_LOST"]),
        ({"job": "7"}, ["JOB_STARTED"]),
    ],
)
def test_they_can_be_filtered(
    alice: User, three: None, query: dict[str, Any], found: list[str]
) -> None:
    assert kinds(alice, **query) == found


@pytest.mark.parametrize("since", ["yesterday", "2026-03-02T12:00:00"])
def test_a_time_that_is_none_or_has_no_zone_is_named(alice: User, since: str) -> None:
    response = ask(alice, since=since)

    assert response.status_code == 422
    [error] = response.json()["errors"]
    assert error["field"] == "since"
    assert "with its zone, such as 2026-03-02T12:00:00Z" in error["message"]


@pytest.mark.parametrize("limit", [0, 501, "x"])
def test_the_limit_has_limits(alice: User, limit: object) -> None:
    assert ask(alice, limit=limit).status_code == 422


def test_details_of_faults_are_for_their_owner_and_for_operators(
    alice: User, bob: User, root: User
) -> None:
    text = "Job 7 (x) waits again: /home/alice/secret is not there"
    events.add("JOB_REQUEUED", text, now=NOW, job_ref="7", owner="alice")
    events.add("LOOP_FAILED", "The sampler failed: OSError: /var/key", now=NOW)

    def texts(user: User) -> set[str]:
        return {event["text"] for event in ask(user).json()["events"]}

    loop = "The sampler failed: OSError: /var/key"
    assert texts(bob) == {"Job 7 (x) waits again", "The sampler failed"}
    assert texts(alice) == {text, "The sampler failed"}
    assert texts(root) == {text, loop}


@pytest.mark.usefixtures("three")
@pytest.mark.parametrize(
    ("query", "wanted"),
    [
        ({"severity": "warning"}, ["GPU_LOST"]),
        ({"owner": "bob"}, ["JOB_STARTED"]),
        ({"host": "gpubox"}, ["GPU_FOUND"]),
        ({"kind": "GPUs"}, ["GPU_FOUND", "GPU_LOST"]),
        ({"until": (NOW + timedelta(minutes=1)).isoformat()}, ["GPU_LOST"]),
        ({"skip": 1, "limit": 1}, ["JOB_STARTED"]),
    ],
)
def test_the_filters_are_those_of_the_page(
    alice: User, query: dict[str, Any], wanted: list[str]
) -> None:
    assert kinds(alice, **query) == wanted


def test_an_unknown_severity_is_refused(alice: User) -> None:
    assert ask(alice, severity="dreadful").status_code == 422


def test_strangers_get_nothing(three: None) -> None:
    assert Client().get("/api/events/").status_code == 401


def test_a_kind_that_there_is_not_is_named_with_the_nearest(alice: User) -> None:
    answer = ask(alice, kind="gpu_lots")
    assert answer.status_code == 422
    (error,) = answer.json()["errors"]
    assert error["message"] == "There is no such kind of event. Did you mean GPU_LOST?"


def test_a_limit_that_is_too_high_is_refused_with_the_maximum(alice: User) -> None:
    (error,) = ask(alice, limit=9999).json()["errors"]
    assert error == {"field": "limit", "message": "It must be at most 500."}
