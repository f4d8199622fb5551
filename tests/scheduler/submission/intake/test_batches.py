"""`POST /api/jobs/batch/`: many jobs in one request, all or none."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from monitor.gpus.rows import snapshot as monitor_store
from monitor.models import Event
from monitor.owners import rows
from scheduler.models import Job, JobDependency, JobInput, Quota, SubmissionKey
from scheduler.submission.intake import steps
from tests import jobs_made
from tests.builders import snapshot

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("data")]
TRAIN = {"command": "python train.py"}


class Batches:
    def __init__(self, user: User) -> None:
        _, token = rows.create_token(user, timezone.now())
        self.headers = {"authorization": f"Bearer {token}"}

    def send(self, *jobs: Any, key: str | None = None) -> Any:
        headers = self.headers | ({"idempotency-key": key} if key else {})
        body = json.dumps({"jobs": jobs})
        return Client().post("/api/jobs/batch/", body, "application/json", headers=headers)

    def errors(self, *jobs: Any) -> list[tuple[int | None, str, str]]:
        answer = self.send(*jobs)
        assert answer.status_code == 422, answer.content
        return [(e.get("index"), e["field"], e["message"]) for e in answer.json()["errors"]]


@pytest.fixture
def batches(alice: User) -> Batches:
    return Batches(alice)


def test_all_jobs_get_a_number_in_the_order_of_the_request(batches: Batches) -> None:
    answer = batches.send(*(TRAIN | {"name": f"n{number}"} for number in range(100)))

    assert answer.status_code == 201
    ids = answer.json()["ids"]
    names = dict(Job.objects.values_list("pk", "name"))
    assert [names[pk] for pk in ids] == [f"n{number}" for number in range(100)]
    assert ids == sorted(ids)


def test_an_array_in_a_batch_is_named_by_its_first_job(batches: Batches) -> None:
    ids = batches.send(TRAIN, TRAIN | {"array": "0-2"}, TRAIN).json()["ids"]

    assert Job.objects.count() == 5
    assert list(Job.objects.filter(array=ids[1]).values_list("array_index", flat=True)) == [0, 1, 2]
    assert ids == sorted(ids)


def test_input_and_dependencies_belong_to_their_job(batches: Batches, alice: User) -> None:
    first = jobs_made.waiting(alice)

    ids = batches.send(TRAIN, TRAIN | {"stdin_base64": "aGk="}, TRAIN | {"after": first.pk})

    _, with_input, dependent = ids.json()["ids"]
    assert bytes(JobInput.objects.get().data) == b"hi"
    assert JobInput.objects.get().job_id == with_input
    assert list(JobDependency.objects.values_list("job", "on")) == [(dependent, first.pk)]


def test_a_batch_is_one_event(batches: Batches) -> None:
    first = batches.send(TRAIN, TRAIN).json()["ids"][0]

    text = f"alice submitted 2 jobs from {first} on (python train.py)"
    assert [event.text for event in Event.objects.filter(kind="JOB_SUBMITTED")] == [text]


def test_the_number_of_statements_hardly_depends_on_the_size(
    batches: Batches, django_assert_max_num_queries: Any
) -> None:
    with django_assert_max_num_queries(60):
        assert batches.send(*[TRAIN] * 300).status_code == 201


def test_errors_name_the_job_and_the_field_and_nothing_is_submitted(batches: Batches) -> None:
    monitor_store.record(snapshot(2))
    errors = batches.errors(TRAIN, {"command": "x", "gpus": 9}, {"command": "x", "gpus": 3})

    assert [(index, field) for index, field, _ in errors] == [(1, "gpus"), (2, "gpus")]
    assert not Job.objects.exists()


@pytest.mark.parametrize(
    ("job", "field", "says"),
    [
        ({"command": "x", "gpus": "two"}, "gpus", "whole number"),
        ({"command": "x", "gpu": 1}, "gpu", "Did you mean gpus?"),
        ({"command": "x\0"}, "command", "can't be used"),
        ({"command": "x", "time_limit": "2"}, "time_limit", "no unit"),
        ({}, "command", "Say what to run"),
        ("x", "jobs", "list of objects"),
    ],
)
def test_mistakes_of_a_field_are_those_of_a_single_job(
    batches: Batches, job: Any, field: str, says: str
) -> None:
    ((index, field, text),) = batches.errors(TRAIN, job)

    assert (index, field) == (1, field)
    assert says in text


def test_the_errors_of_a_single_job_have_no_index(batches: Batches) -> None:
    answer = Client().post(
        "/api/jobs/", {"command": ""}, "application/json", headers=batches.headers
    )

    assert [sorted(error) for error in answer.json()["errors"]] == [["field", "message"]]


def test_an_empty_batch_is_refused(batches: Batches) -> None:
    assert batches.errors()[0][:2] == (None, "jobs")


def test_only_the_first_mistakes_are_listed(batches: Batches) -> None:
    for wrong in ({"command": "x", "gpus": "x"}, {"command": "x", "time_limit": "2"}):
        assert len(batches.errors(*[wrong] * 500)) == steps.MOST_REFUSALS


def test_arrays_of_a_batch_count_with_all_their_jobs(batches: Batches) -> None:
    ((index, field, text),) = batches.errors(*[TRAIN | {"array": "0-5999"}] * 3)

    assert (index, field) == (None, "jobs")
    assert "at most 10000 jobs" in text


def test_the_dependencies_of_a_batch_are_bounded(batches: Batches, alice: User) -> None:
    waiting = [jobs_made.waiting(alice).pk for _ in range(5)]
    before = Job.objects.count()

    errors = batches.errors(*[TRAIN | {"array": "0-2500", "after": waiting}] * 2)

    assert errors[0][:2] == (None, "jobs")
    assert Job.objects.count() == before


def test_jobs_that_do_not_exist_are_named_with_the_index(batches: Batches) -> None:
    ((index, field, text),) = batches.errors(TRAIN, TRAIN | {"after": 999})

    assert (index, field, text) == (1, "after", "There is no job 999.")


def test_a_batch_that_exceeds_the_waiting_jobs_is_refused_as_a_whole(
    batches: Batches, alice: User
) -> None:
    Quota.objects.create(user=alice, queued=3)

    answer = batches.send(*[TRAIN] * 4)

    assert (answer.status_code, answer["Retry-After"]) == (429, "60")
    assert (answer.json()["status"], answer.json()["title"]) == (429, "Too Many Requests")
    assert [error["index"] for error in answer.json()["errors"]] == [3]
    assert not Job.objects.exists()
    assert batches.send(*[TRAIN] * 3).status_code == 201


def test_a_wrong_field_is_not_something_to_wait_for(batches: Batches, alice: User) -> None:
    Quota.objects.create(user=alice, queued=1)

    answer = batches.send(TRAIN | {"priority": 5}, TRAIN, TRAIN)

    assert answer.status_code == answer.json()["status"] == 422
    assert "Retry-After" not in answer


def test_each_job_gets_the_defaults_of_the_quota(batches: Batches, alice: User) -> None:
    Quota.objects.create(user=alice, priority=2)

    batches.send(TRAIN, TRAIN)

    assert set(Job.objects.values_list("priority", flat=True)) == {2}


def test_the_same_key_gives_the_same_numbers(batches: Batches) -> None:
    first = batches.send(TRAIN, TRAIN, key="k")
    again = batches.send(TRAIN, TRAIN, key="k")

    assert again.json() == first.json()
    assert (again.status_code, again["Idempotency-Replayed"]) == (201, "true")
    assert Job.objects.count() == 2
    assert SubmissionKey.objects.count() == 1


def test_the_same_key_with_other_jobs_is_refused(batches: Batches) -> None:
    batches.send(TRAIN, key="k")

    answer = batches.send(TRAIN, TRAIN, key="k")

    assert answer.status_code == 422
    assert answer.json()["errors"][0]["field"] == "Idempotency-Key"
    assert Job.objects.count() == 1


def test_a_batch_needs_a_login() -> None:
    body = json.dumps({"jobs": [TRAIN]})
    assert Client().post("/api/jobs/batch/", body, "application/json").status_code == 401
