"""POST /api/jobs/N/resubmit/: a new job with the request of an ended one."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.utils import timezone

from scheduler.facts import job_fields
from scheduler.models import Job, Quota, ScriptDefinition
from scheduler.submission.intake import actions
from tests import jobs_made
from tests.scheduler.jobs.test_changing import Api

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("data")]
FULL: dict[str, Any] = {
    "gpus": 2,
    "gpu_memory": "20GiB",
    "time_limit": "90min",
    "priority": 2,
    "exclusive": True,
    "name": "a name",
    "estimate": "45 min",
    "cwd": "/data/a folder",
    "umask": "027",
    "limits": {"nofile": 4096, "core": "unlimited"},
    "group": "nogroup",
    "tags": {"project": "vision", "bare": ""},
    "model": "H100",
    "capability": "8.0",
    "power": 12.5,
    "gpu_share": None,
    "cpus": 1.5,
    "memory": "16GiB",
    "retries": 3,
    "pause_on_quick_failure": True,
    "preemptible": True,
    "requeue": True,
    "yield_signal": "USR1",
    "grace": "75s",
    "notify": ["finished", "failed"],
    "host": "any",
}


@pytest.fixture
def api(alice: User) -> Api:
    return Api(alice)


def ended(alice: User, **request: Any) -> Job:
    """A job that was cancelled after its submission."""
    job = actions.submit(request, alice, timezone.now())
    api = Api(alice)
    assert api.send("post", f"/jobs/{job.pk}/cancel/")[1]["cancelled"]
    job.refresh_from_db()
    return job


def again(api: Api, job: Job, **deleted: Any) -> tuple[int, Any]:
    return api.send("post", f"/jobs/{job.pk}/resubmit/", deleted)


def row(job: Job) -> dict[str, Any]:
    columns = [field.column for field in job_fields.stored_fields() if field.column != "env"]
    return {name: getattr(job, name) for name in columns}


@pytest.mark.parametrize(
    "request_",
    [
        {"command": "python train.py --lr 0.1 && echo 'a b'"},
        {"argv": ["python", "train.py", "a b", ""]},
        {"argv": ["/bin/sh", "-c", "echo x", "and", "arguments"]},
        {"command": "true", "gpus": 0},
        {"command": "true", **FULL},
        {"command": "true", "gpu_share": 30},
    ],
    ids=["command", "argv", "sh with arguments", "no GPU", "all fields", "share"],
)
def test_the_new_job_has_the_same_request(api: Api, alice: User, request_: dict[str, Any]) -> None:
    old = ended(alice, **request_)

    status, answer = again(api, old)

    assert (status, answer["state"]) == (201, "queued")
    new = Job.objects.get(pk=answer["id"])
    assert new.pk != old.pk
    assert (new.owner, row(new)) == (alice, row(old))


def test_every_stored_field_is_tested() -> None:
    """A new field must be in FULL, or be one of these."""
    apart = {
        "command", "argv", "script", "script_args", "env", "begin", "array_limit", "interactive",
        "on_gpu", "left_out",
    }  # fmt: skip

    assert {field.name for field in job_fields.stored_fields()} == set(FULL) | apart


def test_a_script_is_run_with_its_arguments_as_it_is_registered_now(api: Api, alice: User) -> None:
    script = ScriptDefinition.objects.create(
        name="resize", argv=["resize", "{size}"],
        schema={"type": "object", "properties": {"size": {"type": "integer"}}},
    )  # fmt: skip
    old = ended(alice, script="resize", script_args={"size": 3})
    ScriptDefinition.objects.filter(pk=script.pk).update(argv=["resize2", "{size}"])

    status, answer = again(api, old)

    new = Job.objects.get(pk=answer["id"])
    assert (status, new.script, new.script_args) == (201, "resize", {"size": 3})
    assert new.argv == ["resize2", "3"]


def test_a_job_of_an_array_keeps_its_index(api: Api, alice: User) -> None:
    first = actions.submit({"command": "true", "array": "3,5"}, alice, timezone.now())
    second = Job.objects.get(array=first.pk, array_index=5)
    api.send("post", f"/jobs/{second.pk}/cancel/")

    _, answer = again(api, second)

    new = Job.objects.get(pk=answer["id"])
    assert (answer["array"], new.array_index) == ([new.pk], 5)


def test_memory_that_was_learned_is_learned_anew(api: Api, alice: User) -> None:
    old = ended(alice, command="true", gpu_memory="20GiB")
    Job.objects.filter(pk=old.pk).update(gpu_memory_is_learned=True)

    new = Job.objects.get(pk=again(api, old)[1]["id"])

    assert (new.gpu_memory_bytes, new.gpu_memory_is_learned) == (None, False)


def test_values_that_were_deleted_are_asked_for_by_name(api: Api, alice: User) -> None:
    old = ended(
        alice, command="cat", env={"LR": "1", "SEED": "2"}, environment={"PATH": "/bin"},
        stdin_base64="eA==",
    )  # fmt: skip

    status, answer = again(api, old, env={"LR": "3"})

    assert status == 422
    assert {error["field"]: error["message"] for error in answer["errors"]} == {
        "env": "The values of SEED were deleted when the job ended; give them.",
        "environment": "The environment of the job was deleted when it ended; give one, or {}.",
        "stdin_base64": "The standard input of the job was deleted when it ended; give one.",
    }


def test_values_that_were_deleted_are_taken_from_the_request(api: Api, alice: User) -> None:
    old = ended(alice, command="cat", env={"LR": "1"}, environment={"PATH": "/bin"})

    status, answer = again(api, old, env={"LR": "3"}, environment={"PATH": "/new"})

    new = Job.objects.get(pk=answer["id"])
    assert (status, new.env, new.input.environment) == (201, {"LR": "3"}, {"PATH": "/new"})


def test_a_job_without_an_environment_gets_none(api: Api, alice: User) -> None:
    old = ended(alice, command="true")

    _, answer = again(api, old, environment={"PATH": "/new"})

    assert not Job.objects.get(pk=answer["id"]).has_environment


def test_the_limits_of_today_apply(api: Api, alice: User) -> None:
    old = ended(alice, command="true", gpus=2)
    Quota.objects.create(user=alice, gpus=1)

    status, answer = again(api, old)

    assert (status, [error["field"] for error in answer["errors"]]) == (422, ["gpus"])
    assert Job.objects.count() == 1


def test_neither_other_users_nor_operators_submit_a_job_again(
    alice: User, bob: User, root: User
) -> None:
    old = ended(alice, command="true")

    for person in (bob, root):
        status, answer = again(Api(person), old)
        assert (status, answer["detail"]) == (403, "Only alice may submit this job again.")
    assert Job.objects.count() == 1


def test_a_job_that_has_not_ended_is_not_submitted_again(api: Api, alice: User) -> None:
    assert again(api, jobs_made.running(alice))[0] == 409


def test_a_repeated_request_with_the_same_key_submits_once(api: Api, alice: User) -> None:
    old = ended(alice, command="true")
    api.headers["Idempotency-Key"] = "k"

    first, second = again(api, old), again(api, old)

    assert first[1]["id"] == second[1]["id"]
    assert Job.objects.count() == 2
