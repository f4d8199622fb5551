"""No way of submitting or changing jobs gives more than the quota of the user."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import transaction
from django.test import Client
from django.utils import timezone

from gpucoord_site.cli.client import RequestFailed
from gpucoord_site.cli.mcp_server import Tools
from monitor.facts.accounts import TokenScope
from monitor.models import Agent
from monitor.owners import rows
from scheduler.jobs.rows import durations
from scheduler.models import IdleTemplate, Job, JobPreset, Quota, ScriptDefinition
from scheduler.submission.batches import actions as batches
from scheduler.submission.batches.step import BatchStep
from scheduler.submission.idle_work import step as idle_work
from scheduler.submission.intake import actions as intake
from scheduler.submission.intake.policy import UnableToSubmit
from tests import jobs_made
from tests.builders import NOW
from tests.cli_bridge import connect_as

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
        _, token = rows.create_token(alice, timezone.now())
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
    _, token = rows.create_token(alice, timezone.now(), scopes=[TokenScope.READ])
    headers = {"authorization": f"Bearer {token}"}
    for path, body in (("/api/jobs/", JOB), ("/api/batches/", JOB | {"items": ["a"]})):
        answer = Client().post(path, json.dumps(body), "application/json", headers=headers)
        assert answer.status_code == 403
    assert not Job.objects.exists()


@pytest.fixture
def operator(bob: User) -> User:
    """An operator who is no administrator."""
    bob.is_staff = True
    bob.save()
    return bob


@pytest.fixture
def agent(alice: User) -> Agent:
    return Agent.objects.create(
        user=alice, name="helper", created_at=NOW, running_jobs=1, gpu_minutes=60
    )


@pytest.fixture
def tools(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> Tools:
    """The tools of `gpucoord mcp` with the token of the agent."""
    return Tools(connect_as(agent.user, monkeypatch, agent))


def session(user: User) -> Client:
    browser = Client()
    browser.force_login(user)
    return browser


def patched(user: User, path: str, body: dict[str, Any]) -> int:
    return session(user).patch(path, json.dumps(body), "application/json").status_code


@pytest.mark.parametrize(
    "fields", [{"priority": 4}, {"gpus": 2, "time_limit": "31m"}, {"time_limit": "61m"}]
)
def test_tools_of_an_agent_pass_no_limit_of_the_agent(tools: Tools, fields: dict[str, Any]) -> None:
    with pytest.raises(RequestFailed):
        tools.submit("true", **fields)
    assert not Job.objects.exists()


def test_tools_of_an_agent_pass_no_limit_of_the_user(tools: Tools, alice: User) -> None:
    Quota.objects.create(user=alice, priority=2, gpus=1, queued=1)
    refused: list[dict[str, Any]] = [{"priority": 3}, {"gpus": 2}]
    for fields in refused:
        with pytest.raises(RequestFailed):
            tools.submit("true", **fields)
    tools.submit("true", gpus=0)
    with pytest.raises(RequestFailed):
        tools.submit("true", gpus=0)


def test_no_field_makes_a_job_of_an_agent_keep_its_gpu(agent: Agent) -> None:
    _, token = rows.create_token(agent.user, timezone.now(), agent=agent)
    headers = {"authorization": f"Bearer {token}"}
    wanted = JOB | {"preemptible": False, "grace": "10m", "blocking": True}
    answer = Client().post("/api/jobs/", json.dumps(wanted), "application/json", headers=headers)

    assert answer.status_code == 201, answer.content
    job = Job.objects.get()
    assert (job.preemptible, job.grace_s, job.priority, job.time_limit_s) == (True, None, 1, 3600)
    assert [each.priority for each in durations.queue(lambda *_: None)] == [1]


@pytest.mark.parametrize("fields", [{"priority": 4}, {"gpus": 1, "time_limit": "2h"}])
def test_a_job_of_an_agent_is_not_changed_beyond_its_limits(
    tools: Tools, alice: User, fields: dict[str, Any]
) -> None:
    number = tools.submit("true", gpus=fields.pop("gpus", 0), time_limit="30m")["id"]

    assert patched(alice, f"/api/jobs/{number}/", fields) == 422


def test_a_job_of_an_agent_keeps_a_time_limit(tools: Tools, alice: User) -> None:
    number = tools.submit("true", time_limit="30m")["id"]

    assert patched(alice, f"/api/jobs/{number}/", {"time_limit": None}) == 200
    assert Job.objects.get().time_limit_s == 3600


def test_no_element_of_an_array_lifts_the_limits_of_the_others(alice: User, root: User) -> None:
    """An operator has raised one element; the quota was lowered after another had ended."""
    first = intake.submit(JOB | {"array": "0-3", "priority": 4}, alice, NOW)
    ended, raised = Job.objects.order_by("array_index")[:2]
    jobs_made.place_again(ended, on=())
    jobs_made.end(ended)
    Quota.objects.create(user=alice, priority=2)
    every = f"/api/jobs/{first.pk}/?array=true"
    assert patched(alice, every, {"priority": 1}) == 200
    assert patched(root, f"/api/jobs/{raised.pk}/", {"priority": 5}) == 200

    assert [patched(alice, every, {"priority": each}) for each in (5, 4, 3)] == [422] * 3
    waiting = Job.objects.filter(state="queued").order_by("array_index")
    assert [job.priority for job in waiting] == [5, 1, 1]


@pytest.mark.parametrize("path", ["/jobs/new/?like={}", "/api/jobs/{}/requeue/", "/api/jobs/{}/"])
def test_an_ended_job_comes_back_within_the_lowered_quota(alice: User, path: str) -> None:
    job = intake.submit(JOB | {"priority": 4}, alice, NOW)
    jobs_made.place_again(job, on=())
    jobs_made.end(job)
    Quota.objects.create(user=alice, priority=2)
    browser, address = session(alice), path.format(job.pk)
    if "like" in path:
        form = browser.get(address).context["form"]
        status = browser.post("/jobs/new/", form.initial).status_code
    elif "requeue" in path:
        status = browser.post(address).status_code
    else:
        status = patched(alice, address, {"priority": 4})

    assert status in (409, 422)
    assert Job.objects.count() == 1


def test_a_preset_of_operators_lifts_no_limit(alice: User, root: User) -> None:
    values = {"command": "true", "gpus": "2", "priority": "5"}
    Quota.objects.create(user=alice, gpus=1, priority=2)
    presets = [
        JobPreset.objects.create(user=user, name="p", values=values) for user in (None, alice)
    ]
    browser = session(alice)
    for preset in presets:
        form = browser.get(f"/jobs/new/?preset={preset.pk}").context["form"]
        answer = browser.post("/jobs/new/", form.initial)
        assert answer.status_code == 422
        assert {"gpus", "priority"} <= set(answer.context["form"].errors)
    assert not Job.objects.exists()


def test_a_preset_of_another_user_is_not_used(alice: User, bob: User) -> None:
    theirs = JobPreset.objects.create(user=bob, name="p", values={"command": "secret"})

    page = session(alice).get(f"/jobs/new/?preset={theirs.pk}").content.decode()

    assert "secret" not in page


def test_the_jobs_of_a_batch_keep_to_a_lowered_quota(alice: User) -> None:
    raw = JOB | {"priority": 4}
    batch = batches.submit(raw, ["a", "b"], "shared", alice, NOW)
    Quota.objects.create(user=alice, priority=2)

    assert BatchStep(transaction.atomic, "gpubox").step(NOW) == 2
    assert {job.priority for job in Job.objects.all()} == {2}
    assert batch.owner == alice


def idle_template(user: User, **changes: Any) -> int:
    body = {"name": "train", "request": {"command": "true", "gpus": 0}} | changes
    text = json.dumps(body)
    return session(user).post("/api/idle-templates/", text, "application/json").status_code


def test_idle_work_is_made_by_operators_and_charged_to_themselves(
    alice: User, operator: User, root: User
) -> None:
    assert idle_template(alice) == 403
    assert idle_template(operator, account="alice") == 422
    assert idle_template(operator) == 201
    assert idle_template(root, account="alice", name="other") == 201
    accounts = IdleTemplate.objects.order_by("pk").values_list("account__username", flat=True)
    assert list(accounts) == ["bob", "alice"]


@pytest.mark.parametrize(
    "fields", [{"priority": 5}, {"preemptible": False}, {"blocking": True}, {"array": "0-9"}]
)
def test_idle_work_has_no_field_for_more_than_the_lowest_priority(
    root: User, fields: dict[str, Any]
) -> None:
    assert idle_template(root, request={"command": "true", "gpus": 0} | fields) == 422


def test_idle_work_keeps_to_the_quota_of_its_account(alice: User) -> None:
    row = IdleTemplate(name="train", account=alice, request={"command": "true", "gpus": 2})
    new = idle_work.job_of(row, "", NOW)
    assert (new.priority, new.yield_options.preemptible) == (1, True)

    Quota.objects.create(user=alice, gpus=1)
    with pytest.raises(UnableToSubmit):
        idle_work.job_of(row, "", NOW)


@pytest.fixture
def script(db: None) -> ScriptDefinition:
    schema = {
        "properties": {
            "text": {"type": "string"}, "lines": {"type": "array", "items": {"type": "string"}},
        }
    }  # fmt: skip
    argv = ["{python}", "-c", "pass", "--text={text}", "--", "{lines}"]
    return ScriptDefinition.objects.create(
        name="echo", argv=argv, schema=schema, gpu="no", task_type="process"
    )


@pytest.mark.parametrize(
    "text", ["; rm -rf ~", "$(id)", "`id`", "a b", "--priority=5", "a\nb", "{lines}", "'\"\\", "*"]
)
def test_an_argument_of_a_script_is_one_word(
    script: ScriptDefinition, alice: User, text: str
) -> None:
    """No shell reads it, and placeholders in it are text."""
    raw = {"script": "echo", "script_args": {"text": text, "lines": [text, text]}}
    job = intake.submit(raw, alice, NOW)

    assert job.argv[1:] == ["-c", "pass", f"--text={text}", "--", text, text]
    assert (job.priority, job.gpus) == (3, 0)


@pytest.mark.parametrize(
    "arguments", [{"python": "/bin/sh"}, {"priority": 5}, {"programs": "/"}, {"text": "\0"}]
)
def test_arguments_replace_neither_the_program_nor_fields_of_the_job(
    script: ScriptDefinition, alice: User, arguments: dict[str, Any]
) -> None:
    with pytest.raises(UnableToSubmit):
        intake.submit({"script": "echo", "script_args": arguments}, alice, NOW)


def test_a_script_lifts_no_limit(script: ScriptDefinition, send: Send, alice: User) -> None:
    Quota.objects.create(user=alice, priority=2)
    body = {"script": "echo", "priority": 3}
    page = session(alice).post("/scripts/echo/", {"priority": "3"})

    assert (page.status_code, send("POST", "/api/jobs/", body).status_code) == (422, 422)
    assert not Job.objects.exists()
