"""Task records by REST: one door to prompts and to runs of scripts."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from monitor.gpus.rows import snapshot as snapshots
from scheduler.models import Job, ModelService, Prompt, ScriptDefinition
from tests.builders import NOW, snapshot

pytestmark = pytest.mark.django_db
AsUser = Callable[[User], Client]
EMBED = {
    "task_class": "script",
    "task_type": "embed",
    "script": "embed_words",
    "script_args": {"words": "a b"},
}


@pytest.fixture(autouse=True)
def _machine() -> None:
    snapshots.record(snapshot(2))


@pytest.fixture
def small() -> ModelService:
    return ModelService.objects.create(name="small", argv=["serve", "{port}"])


@pytest.fixture
def script() -> ScriptDefinition:
    schema = {"type": "object", "properties": {"words": {"type": "string"}}}
    return ScriptDefinition.objects.create(
        name="embed_words", argv=["embed", "{words}"], task_type="embed", schema=schema
    )


def send(client: Client, **body: object) -> Any:
    return client.post("/api/tasks/", json.dumps(body), content_type="application/json")


def errors(answer: Any) -> dict[str, str]:
    return {each["field"]: each["message"] for each in answer.json()["errors"]}


def test_a_task_of_class_llm_is_a_prompt(small: ModelService, alice: User, as_user: AsUser) -> None:
    answer = send(as_user(alice), task_class="llm", task_type="parse", prompt="hello", priority=4)

    body = answer.json()
    row = Prompt.objects.get()
    assert answer.status_code == 201, answer.content
    assert (row.model, row.type, row.priority, row.owner) == ("small", "parse", 4, alice)
    assert (body["id"], body["status"], body["assigned_gpu"]) == (
        f"prompt-{row.pk}", "queued", None,
    )  # fmt: skip


def test_a_task_of_class_script_is_a_job(
    script: ScriptDefinition, alice: User, as_user: AsUser
) -> None:
    answer = send(as_user(alice), **EMBED, priority=2, estimated_duration_sec=90)

    job = Job.objects.get()
    assert answer.status_code == 201, answer.content
    assert (job.script, job.priority, job.estimate_s, job.task_type) == (
        "embed_words", 2, 90, "embed",
    )  # fmt: skip
    assert answer.json()["id"] == f"job-{job.pk}"
    assert answer.json()["estimated_duration_sec"] == 90


@pytest.mark.parametrize(("wish", "gpus"), [("any", 1), ("none", 0), ("1", 1)])
def test_a_script_gets_the_gpu_that_its_record_requires(
    script: ScriptDefinition, alice: User, as_user: AsUser, wish: str, gpus: int
) -> None:
    ScriptDefinition.objects.update(gpu="optional")

    answer = send(as_user(alice), **EMBED, gpu_requirement=wish)

    job = Job.objects.get()
    assert answer.status_code == 201, answer.content
    assert job.gpus == gpus
    assert bool(job.gpu_uuid) == (wish == "1")


def test_the_same_id_sends_once(
    small: ModelService, script: ScriptDefinition, alice: User, as_user: AsUser
) -> None:
    client = as_user(alice)
    for body in {"task_class": "llm", "prompt": "hello"}, EMBED:
        task_id = f"mine-{body['task_class']}"
        first, again = (send(client, **body, task_id=task_id) for _ in range(2))

        assert first.json()["id"] == again.json()["id"]
        assert again["Idempotency-Replayed"] == "true"
        assert client.get(f"/api/tasks/{task_id}/").json()["id"] == first.json()["id"]
    assert (Prompt.objects.count(), Job.objects.count()) == (1, 1)


def test_an_id_of_another_task_is_refused(
    small: ModelService, alice: User, as_user: AsUser
) -> None:
    client = as_user(alice)
    send(client, task_class="llm", prompt="hello", task_id="x")

    answer = send(client, task_class="llm", prompt="other", task_id="x")

    assert "another task" in errors(answer)["task_id"]
    assert Prompt.objects.count() == 1


def test_ids_of_two_users_do_not_meet(
    small: ModelService, alice: User, bob: User, as_user: AsUser
) -> None:
    for person in alice, bob:
        send(as_user(person), task_class="llm", prompt="hello", task_id="x")

    assert Prompt.objects.count() == 2
    assert as_user(bob).get("/api/tasks/x/").json()["owner"] == "bob"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"task_class": "llm"}, "prompt"),
        ({"task_class": "llm", "prompt": "x", "script": "embed_words"}, "script"),
        ({"task_class": "llm", "prompt": "x", "task_type": "embed"}, "task_type"),
        ({"task_class": "llm", "prompt": "x", "gpu_requirement": "0"}, "gpu_requirement"),
        ({"task_class": "script"}, "script"),
        (EMBED | {"prompt": "x"}, "prompt"),
        (EMBED | {"task_type": "transcribe"}, "task_type"),
        (EMBED | {"script": "unknown"}, "script"),
        (EMBED | {"script_args": {"unknown": 1}}, "script_args.unknown"),
        (EMBED | {"gpu_requirement": "77"}, "gpu_requirement"),
    ],
)
def test_what_contradicts_its_class_is_refused_by_field(
    small: ModelService,
    script: ScriptDefinition,
    alice: User,
    as_user: AsUser,
    body: dict[str, object],
    field: str,
) -> None:
    answer = send(as_user(alice), **body)

    assert answer.status_code == 422, answer.content
    assert field in errors(answer)
    assert (Prompt.objects.count(), Job.objects.count()) == (0, 0)


def test_with_several_models_one_must_be_named(
    small: ModelService, alice: User, as_user: AsUser
) -> None:
    ModelService.objects.create(name="large", argv=["serve", "{port}"])

    answer = send(as_user(alice), task_class="llm", prompt="x")

    assert errors(answer) == {"model": "Name the model: large, small."}
    assert send(as_user(alice), task_class="llm", prompt="x", model="large").status_code == 201


def test_both_kinds_are_listed_by_priority(
    small: ModelService, script: ScriptDefinition, alice: User, bob: User, as_user: AsUser
) -> None:
    client = as_user(alice)
    for priority in 2, 4:
        send(client, task_class="llm", prompt="x", priority=priority)
        send(client, **EMBED, priority=priority)
    send(as_user(bob), task_class="llm", prompt="secret of bob", priority=5)

    tasks = client.get("/api/tasks/").json()["tasks"]

    assert [task["priority"] for task in tasks] == [4, 4, 2, 2]
    assert [task["task_class"] for task in tasks] == ["llm", "script", "llm", "script"]


@pytest.mark.parametrize(
    ("state", "outcome", "status"),
    [
        ("starting", "", "assigned"),
        ("running", "", "running"),
        ("stopping", "", "running"),
        ("finished", "succeeded", "complete"),
        ("finished", "cancelled", "failed"),
    ],
)
def test_the_state_of_a_job_is_a_status(
    script: ScriptDefinition,
    alice: User,
    as_user: AsUser,
    state: str,
    outcome: str,
    status: str,
) -> None:
    client = as_user(alice)
    number = send(client, **EMBED).json()["id"]
    ended_at = NOW if outcome else None
    Job.objects.update(state=state, outcome=outcome, started_at=NOW, ended_at=ended_at)

    listed = client.get(f"/api/tasks/?status={status}").json()["tasks"]

    assert client.get(f"/api/tasks/{number}/").json()["status"] == status
    assert [task["id"] for task in listed] == [number]


def test_a_prompt_of_another_user_is_not_shown(
    small: ModelService, alice: User, bob: User, as_user: AsUser
) -> None:
    number = send(as_user(alice), task_class="llm", prompt="secret").json()["id"]

    assert as_user(bob).get(f"/api/tasks/{number}/").status_code == 403
    assert as_user(bob).get("/api/tasks/").json()["tasks"] == []
    assert as_user(bob).get("/api/tasks/prompt-999999/").status_code == 404
