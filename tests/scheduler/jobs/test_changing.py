"""PATCH of waiting jobs, requeueing, tags, and the filters and pages of the list."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from monitor.gpus.rows import snapshot as monitor_store
from monitor.models import Event
from monitor.owners import rows as tokens
from scheduler.models import Job, Quota, YieldRequest
from tests import jobs_made
from tests.builders import GIB, NOW, gpu_uuid, snapshot

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("data")]


class Api:
    def __init__(self, user: User) -> None:
        _, token = tokens.create_token(user, timezone.now())
        self.headers = {"authorization": f"Bearer {token}"}

    def send(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        text = json.dumps(body or {})
        answer = getattr(Client(), method)(
            f"/api{path}", text, "application/json", headers=self.headers
        )
        return answer.status_code, answer.json()

    def change(self, job: Job, **fields: Any) -> tuple[int, Any]:
        return self.send("patch", f"/jobs/{job.pk}/", fields)

    def jobs(self, **query: Any) -> list[int]:
        answer = Client().get("/api/jobs/", query, headers=self.headers)
        assert answer.status_code == 200, answer.content
        return [job["id"] for job in answer.json()["jobs"]]


@pytest.fixture
def api(alice: User) -> Api:
    return Api(alice)


def test_the_owner_changes_a_waiting_job(api: Api, alice: User) -> None:
    job = jobs_made.waiting(alice)

    status, answer = api.change(
        job, priority=1, time_limit="2h", gpu_memory="8GiB", memory="1GiB", tags={"project": "x"}
    )

    assert status == 200
    assert (answer["priority"], answer["time_limit_s"], answer["tags"]) == (
        1,
        7200,
        {"project": "x"},
    )
    job.refresh_from_db()
    assert (job.gpu_memory_bytes, job.memory_bytes, job.priority) == (8 * GIB, GIB, 1)
    text = (
        f"alice changed job {job.pk} ({job.name}): gpu memory, time limit, priority, tags, memory"
    )
    assert Event.objects.get(kind="JOB_CHANGED").text == text


def test_other_fields_stay_as_they_were(api: Api, alice: User) -> None:
    api.send(
        "post", "/jobs/", {"command": "x", "gpu_memory": "3GiB", "estimate": "1h", "cpus": 0.1}
    )
    job = Job.objects.get()
    before = Job.objects.filter(pk=job.pk).values().get()

    assert api.change(job, priority=2)[0] == 200

    after = Job.objects.filter(pk=job.pk).values().get()
    assert {name for name in before if before[name] != after[name]} == {"priority"}


def test_the_owner_changes_the_requested_gpus(api: Api, alice: User) -> None:
    monitor_store.record(snapshot(2, at=timezone.now()))
    api.send("post", "/jobs/", {"command": "x", "gpus": 2, "exclusive": True, "on_gpu": None})
    job = Job.objects.get()

    status, _ = api.change(job, gpus=1, exclusive=False, on_gpu="1", preemptible=True)

    assert status == 200
    job.refresh_from_db()
    assert (job.gpus, job.exclusive, job.gpu_uuid, job.preemptible) == (
        1,
        False,
        gpu_uuid(1),
        True,
    )
    assert api.change(job, on_gpu=None, gpus=9)[0] == 422


def test_null_resets_a_field(api: Api, alice: User) -> None:
    api.send("post", "/jobs/", {"command": "x y", "time_limit": "1h", "name": "n", "priority": 1})
    job = Job.objects.get()

    api.change(job, time_limit=None, name=None, priority=None)

    job.refresh_from_db()
    assert (job.time_limit_s, job.name, job.priority) == (None, "x y", 3)


def test_a_started_job_is_not_changed(api: Api, alice: User) -> None:
    job = jobs_made.running(alice)

    status, answer = api.change(job, priority=1)

    assert (status, "waits no more" in answer["detail"]) == (409, True)
    job.refresh_from_db()
    assert job.priority != 1


def test_others_may_not_change_it_and_operators_may(alice: User, bob: User, root: User) -> None:
    job = jobs_made.waiting(alice)

    assert Api(bob).change(job, priority=1)[0] == 403
    assert Api(root).change(job, priority=1)[0] == 200


def test_the_quota_holds_for_owners_and_not_for_operators(alice: User, root: User) -> None:
    Quota.objects.create(user=alice, priority=3, queued=1)
    job = jobs_made.waiting(alice)

    status, answer = Api(alice).change(job, priority=5)

    assert (status, answer["errors"][0]["field"]) == (422, "priority")
    assert Api(alice).change(job, priority=2)[0] == 200
    assert Api(root).change(job, priority=5)[0] == 200


def test_what_no_gpu_has_is_refused(api: Api, alice: User) -> None:
    monitor_store.record(snapshot(2))
    job = jobs_made.waiting(alice)

    status, answer = api.change(job, gpu_memory="900GiB")

    assert (status, answer["errors"][0]["field"]) == (422, "gpu_memory")


def test_a_job_that_became_impossible_can_still_be_changed(api: Api, alice: User) -> None:
    """The change is not to blame for a quota that was lowered."""
    job = jobs_made.waiting(alice, priority=4)
    Quota.objects.create(user=alice, gpus=0)

    assert api.change(job, tags=["late"])[0] == 200


@pytest.mark.parametrize("field", ["command", "gpus", "array", "owner"])
def test_other_fields_can_not_be_changed(api: Api, alice: User, field: str) -> None:
    job = jobs_made.waiting(alice)

    status, answer = api.change(job, **{field: "1"})

    assert (status, answer["errors"][0]["field"]) == (422, field)


def test_all_waiting_jobs_of_an_array_change_together(api: Api) -> None:
    _, answer = api.send("post", "/jobs/", {"command": "x", "array": "0-3"})
    Job.objects.filter(array_index=0).update(state="running")

    status, _ = api.send("patch", f"/jobs/{answer['id']}/?array=true", {"priority": 1})

    assert status == 200
    rows = Job.objects.order_by("array_index").values_list("priority", flat=True)
    assert list(rows) == [3, 1, 1, 1]


def test_a_running_job_is_put_back(api: Api, alice: User) -> None:
    job = jobs_made.running(alice)

    status, answer = api.send("post", f"/jobs/{job.pk}/requeue/")

    assert (status, answer["requeued"]) == (200, True)
    yield_request = YieldRequest.objects.get()
    assert (yield_request.attempt.job_id, yield_request.code, yield_request.counts) == (
        job.pk,
        "Requeued",
        False,
    )
    job.refresh_from_db()
    assert job.requeue


def test_only_running_jobs_of_ones_own_are_put_back(alice: User, bob: User) -> None:
    running, waiting = jobs_made.running(alice), jobs_made.waiting(alice)
    ended = jobs_made.finished(alice)
    requeue = "/jobs/{}/requeue/".format

    assert Api(bob).send("post", requeue(running.pk))[0] == 403
    assert Api(alice).send("post", requeue(waiting.pk))[1]["requeued"] is False
    status, answer = Api(alice).send("post", requeue(ended.pk))
    assert (status, "submit it again" in answer["detail"]) == (409, True)


@pytest.mark.parametrize(
    ("tags", "stored"),
    [
        ({"project": "vision"}, {"project": "vision"}),
        (["a", "b=c d"], {"a": "", "b": "c d"}),
        ({}, {}),
        (None, {}),
    ],
)
def test_tags_are_given_as_an_object_or_a_list(api: Api, tags: Any, stored: Any) -> None:
    _, answer = api.send("post", "/jobs/", {"command": "x", "tags": tags})

    assert Job.objects.get(pk=answer["id"]).tags == stored


@pytest.mark.parametrize(
    ("tags", "says"),
    [
        (["a=1", "a=2"], "is given more than once"),
        (["a=1"] * 20, "at most 16 tags"),
        ({"a b": ""}, "can't be the name of a tag"),
        ({"a": "x" * 201}, "at most 200"),
        ({"a": "\u202e"}, "U+202E"),
        ({str(number): "" for number in range(17)}, "at most 16"),
        ({"a": "\0"}, "can't be used"),
        ({"a": 1}, "with texts"),
    ],
)
def test_wrong_tags_are_refused(api: Api, tags: Any, says: str) -> None:
    status, answer = api.send("post", "/jobs/", {"command": "x", "tags": tags})

    assert (status, answer["errors"][0]["field"]) == (422, "tags")
    assert says in answer["errors"][0]["message"]


def test_the_list_is_filtered(api: Api, alice: User, bob: User) -> None:
    now = NOW
    old = jobs_made.waiting(alice, name="train old", at=now - timedelta(days=2))
    new = jobs_made.waiting(bob, name="Train new", tags={"project": "x", "late": ""})
    other = jobs_made.waiting(bob, name="eval", tags={"project": "y"})
    Job.objects.filter(pk=other.pk).update(
        state="finished", outcome="failed", ended_at=now, array=old.pk
    )

    day = (now - timedelta(days=1)).isoformat()
    assert api.jobs(name="train") == [new.pk, old.pk]
    assert api.jobs(outcome="failed") == [other.pk]
    assert api.jobs(since=day) == [other.pk, new.pk]
    assert api.jobs(until=day) == [old.pk]
    assert api.jobs(array=old.pk) == [other.pk]
    assert api.jobs(tag="project=x") == api.jobs(tag="late") == [new.pk]
    assert api.jobs(tag="project") == [other.pk, new.pk]
    assert api.jobs(tag="project__x") == api.jobs(tag='a"b') == []
    assert api.jobs(owner="me", state="open") == [old.pk]


def test_pages_neither_repeat_nor_skip_jobs_when_some_are_added(api: Api, alice: User) -> None:
    jobs = [jobs_made.waiting(alice).pk for _ in range(5)]
    first = Client().get("/api/jobs/?limit=2&owner=me", headers=api.headers).json()
    jobs_made.waiting(alice)
    second = Client().get(first["next"], headers=api.headers).json()
    third = Client().get(second["next"], headers=api.headers).json()

    ids = [job["id"] for page in (first, second, third) for job in page["jobs"]]
    assert ids == sorted(jobs, reverse=True)
    assert third["next"] is None
    assert (first["total"], second["total"]) == (5, 6)


@pytest.mark.parametrize("cursor", ["0", "x", "-1", "1" * 30])
def test_a_wrong_cursor_is_refused(api: Api, cursor: str) -> None:
    answer = Client().get("/api/jobs/", {"cursor": cursor}, headers=api.headers)

    assert answer.status_code == 422
    assert "next" in answer.json()["errors"][0]["message"]
