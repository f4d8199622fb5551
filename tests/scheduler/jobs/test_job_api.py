from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from monitor.gpus.rows import snapshot as monitor_store
from monitor.owners import rows
from scheduler.facts.blockers import Tier
from scheduler.facts.jobs import Requirement
from scheduler.jobs.pages import serialise
from scheduler.models import Attempt, Job, Quota
from scheduler.submission.intake import steps
from tests import jobs_made
from tests.builders import GIB, gpu, gpu_uuid, process, snapshot

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("data")]


class Api:
    """A client with a token; what it returns is (status, JSON)."""

    def __init__(self, user: User | None) -> None:
        self.client = Client()
        self.headers = {}
        if user is not None:
            _, text = rows.create_token(user, timezone.now())
            self.headers = {"authorization": f"Bearer {text}"}

    def get(self, path: str, **query: Any) -> tuple[int, Any]:
        response = self.client.get(f"/api{path}", query, headers=self.headers)
        return response.status_code, response.json()

    def post(self, path: str, body: Any = None) -> tuple[int, Any]:
        text = body if isinstance(body, str) else json.dumps(body or {})
        response = self.client.post(f"/api{path}", text, "application/json", headers=self.headers)
        return response.status_code, response.json()

    def submit(self, **body: Any) -> tuple[int, Any]:
        return self.post("/jobs/", {"command": "python train.py"} | body)

    def raw(self, path: str, **query: Any) -> Any:
        return self.client.get(f"/api{path}", query, headers=self.headers)


@pytest.fixture
def api(alice: User) -> Api:
    return Api(alice)


def fields(answer: dict[str, Any]) -> dict[str, str]:
    return {error["field"]: error["message"] for error in answer["errors"]}


def test_it_submits_a_job(api: Api, alice: User) -> None:
    status, answer = api.submit(name="try", gpus=1, gpu_memory="20GiB", env={"LR": "1"})

    job = Job.objects.get(pk=answer["id"])
    assert (status, answer["state"], answer["url"]) == (201, "queued", f"/jobs/{job.pk}/")
    assert (job.owner, job.name, job.gpu_memory_bytes) == (alice, "try", 20 * GIB)
    assert job.argv == ["/bin/sh", "-c", "python train.py"]


def test_it_submits_an_argv_without_a_shell(api: Api) -> None:
    _, answer = api.post("/jobs/", {"argv": ["echo", "a b; c"], "gpus": 0})

    job = Job.objects.get(pk=answer["id"])
    assert (job.argv, job.command) == (["echo", "a b; c"], "echo 'a b; c'")


@pytest.mark.parametrize(
    ("body", "field", "says"),
    [
        ({"command": "x", "gpu": 1}, "gpu", "Did you mean gpus?"),
        ({"command": "x", "colour": 1}, "colour", "There is no such field."),
        ({"command": ["x"]}, "command", "as one text"),
        ({"command": "x", "gpus": "two"}, "gpus", "whole number"),
        ({"command": "x", "gpus": True}, "gpus", "whole number"),
        ({"command": "x", "gpus": 1.5}, "gpus", "whole number"),
        ({"command": "x", "gpu_memory": [1]}, "gpu_memory", "20GiB"),
        ({"command": "x", "env": {"A": 1}}, "env", "LR=0.1"),
        ({"command": "x", "exclusive": "yes"}, "exclusive", "true or false"),
        ({"argv": "ls -l"}, "argv", "as a list"),
        ({}, "command", "Say what to run"),
        ([1], "new", "Write an object"),
    ],
)
def test_it_names_the_field_and_what_it_wants(api: Api, body: Any, field: str, says: str) -> None:
    status, answer = api.post("/jobs/", json.dumps(body))

    assert status == 422
    assert says in fields(answer)[field]
    assert not Job.objects.exists()


def test_it_refuses_what_no_gpu_has_with_the_numbers(api: Api) -> None:
    monitor_store.record(snapshot(2))

    status, answer = api.submit(gpu_memory="200GiB", gpus=3)

    assert status == 422
    assert fields(answer)["gpus"] == "You ask for 3 GPUs; this machine has 2 GPUs."
    assert "200 GiB" in fields(answer)["gpu_memory"]


@pytest.mark.parametrize("path", ["/jobs/", "/jobs/what-if/"])
def test_a_field_of_a_wrong_type_is_told_with_the_mistakes_in_other_fields(
    api: Api, path: str
) -> None:
    monitor_store.record(snapshot(2))

    status, answer = api.post(
        path, {"command": "x", "after": "x", "gpus": 3, "memory": "7zz", "nice": 1}
    )

    assert status == 422
    assert set(fields(answer)) == {"after", "gpus", "memory", "nice"}
    assert "this machine has 2 GPUs" in fields(answer)["gpus"]


def test_an_unreadable_command_is_not_told_to_be_missing_too(api: Api) -> None:
    _, answer = api.post("/jobs/", {"argv": "ls -l", "gpus": -1})

    assert set(fields(answer)) == {"argv", "gpus"}


@pytest.mark.parametrize(
    "body", ["{", "", "\udcff".encode("utf-8", "surrogateescape").decode("latin1"), "NaN"]
)
def test_a_body_that_is_not_json_is_said_so_in_json(api: Api, body: str) -> None:
    status, answer = api.post("/jobs/", body)

    assert status in (400, 422)
    assert answer["detail"]


def test_who_is_not_known_gets_401_in_json() -> None:
    for path in ("/gpus/", "/processes/", "/jobs/", "/jobs/1/", "/jobs/1/log/"):
        response = Api(None).raw(path)
        assert (response.status_code, response["WWW-Authenticate"][:6]) == (401, "Bearer")
        assert "Log in, or send a token" in response.json()["detail"]


def test_a_wrong_token_is_refused_even_with_a_session(
    alice: User, as_user: Callable[[User], Client]
) -> None:
    response = as_user(alice).get("/api/gpus/", headers={"authorization": "Bearer gpc_wrong"})

    assert response.status_code == 401
    assert "unknown, expired or revoked" in response.json()["detail"]


@pytest.mark.parametrize("path", ["/api/nothing/", "/api/jobs/999/", "/api/jobs/x/", "/api/jobs"])
def test_what_is_not_there_is_404_in_json(api: Api, path: str) -> None:
    response = api.client.get(path, headers=api.headers)

    assert response.status_code == 404
    assert response.json()["detail"]


def test_a_wrong_method_is_405_in_json(api: Api) -> None:
    response = api.client.delete("/api/jobs/", headers=api.headers)

    assert (response.status_code, response["Allow"]) == (405, "GET, POST")
    assert "method" in response.json()["detail"]


def test_a_post_without_the_last_slash_is_not_taken_for_a_get(api: Api) -> None:
    status, _ = api.post("/jobs", {"command": "x"})

    assert status == 404


def test_a_fault_of_ours_is_500_in_json(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("secret detail")

    monkeypatch.setattr("scheduler.jobs.rows.changes.submit_all", fail)
    status, answer = api.submit()

    assert status == 500
    assert "secret" not in answer["detail"]


def test_a_browser_needs_its_csrf_token(alice: User) -> None:
    browser = Client(enforce_csrf_checks=True)
    browser.force_login(alice, "django.contrib.auth.backends.ModelBackend")
    body = json.dumps({"command": "x"})

    refused = browser.post("/api/jobs/", body, "application/json")
    assert (refused.status_code, "X-CSRFToken" in refused.json()["detail"]) == (403, True)

    browser.get("/jobs/new/")
    token = browser.cookies["gpucoord_csrf"].value
    taken = browser.post("/api/jobs/", body, "application/json", headers={"x-csrftoken": token})
    assert taken.status_code == 201


def test_an_owner_sees_their_job(api: Api, alice: User) -> None:
    job = jobs_made.running(alice, on=(0, 1), env={"KEY": "s3cret"}, cwd="/srv")

    status, answer = api.get(f"/jobs/{job.pk}/")

    assert status == 200
    assert (answer["state"], answer["outcome"], answer["owner"]) == ("running", None, "alice")
    assert answer["gpus"] == [gpu_uuid(0), gpu_uuid(1)]
    assert (answer["command"], answer["cwd"], answer["env_names"]) == (
        "python train.py",
        "/srv",
        ["KEY"],
    )
    assert answer["started_at"] == "2026-03-02T12:00:02Z"
    assert "s3cret" not in json.dumps(answer)


def test_an_owner_sees_limits_group_and_what_was_left_out(
    api: Api, alice: User, client: Client
) -> None:
    job = jobs_made.running(
        alice,
        limits={"nofile": 4096, "core": "unlimited"},
        group="vision",
        left_out={"HF_TOKEN": "TOKEN"},
    )
    client.force_login(alice)
    page = client.get(f"/jobs/{job.pk}/").content.decode()

    _, answer = api.get(f"/jobs/{job.pk}/")
    assert answer["limits"] == {"nofile": 4096, "core": "unlimited"}
    assert (answer["group"], answer["left_out"]) == ("vision", {"HF_TOKEN": "TOKEN"})
    assert "<code>HF_TOKEN</code>: TOKEN" in page
    assert "<code>nofile</code>: 4096" in page
    assert "<code>vision</code>" in page


def test_the_answer_says_what_the_server_leaves_out(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "_hard_limit", lambda _name: 2**20)
    body = {"command": "x", "gpus": 0, "limits": {"nofile": 2**21, "cpu": "unlimited", "core": 7}}

    status, answer = api.post("/jobs/", body)

    assert status == 201, answer
    assert answer["left_out"] == {"limit nofile": "2097152; at most 1048576 on this server"}
    assert Job.objects.get().left_out == answer["left_out"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("limits", {"files": 1}),
        ("limits", {"nofile": -1}),
        ("limits", {"nofile": "many"}),
        ("limits", {"nofile": True}),
        ("limits", {"nofile": 2**70}),
        ("group", "a:b"),
        ("left_out", {"A\n": "x"}),
        ("left_out", {"A": "x" * 400}),
    ],
)
def test_wrong_limits_and_groups_are_refused(api: Api, field: str, value: Any) -> None:
    status, answer = api.post("/jobs/", {"command": "x", field: value})

    assert status == 422
    assert {error["field"].partition(".")[0] for error in answer["errors"]} == {field}


def test_a_stranger_sees_who_is_where_but_not_what(alice: User, bob: User) -> None:
    job = jobs_made.running(alice, env={"KEY": "1"}, cwd="/srv")
    jobs_made.end(job, "failed", exit_code=126, problem="/srv does not exist")

    _, answer = Api(bob).get(f"/jobs/{job.pk}/")

    assert (answer["owner"], answer["outcome"], answer["gpus"]) == (
        "alice",
        "failed",
        [gpu_uuid(0)],
    )
    hidden = {name: answer[name] for name in ("command", "argv", "cwd", "env_names", "problem")}
    assert set(hidden.values()) == {None}
    assert "/srv" not in json.dumps(answer)


def test_how_it_ended_is_told_in_full(api: Api, alice: User) -> None:
    job = jobs_made.finished(
        alice, "failed", exit_code=None, signal=9, cpu_s=1.5, peak_memory_bytes=GIB, log_bytes=7
    )

    _, answer = api.get(f"/jobs/{job.pk}/")

    assert (answer["state"], answer["outcome"], answer["signal"]) == ("finished", "failed", 9)
    assert (answer["cpu_s"], answer["peak_memory_bytes"], answer["log_bytes"]) == (1.5, GIB, 7)
    assert answer["ended_at"] == "2026-03-02T12:03:00Z"
    assert [attempt["number"] for attempt in answer["attempts"]] == [1]


def test_it_says_why_a_job_waits(api: Api, alice: User) -> None:
    job = jobs_made.waiting(alice)
    Job.objects.filter(pk=job.pk).update(blockers=[{"code": "MEMORY", "text": "No room."}])

    _, answer = api.get(f"/jobs/{job.pk}/")

    assert answer["blockers"][0]["code"] == "MEMORY"
    assert answer["blockers"][0]["until"] is None


def test_it_lists_the_newest_first_by_pages(api: Api, alice: User, bob: User) -> None:
    made = [jobs_made.waiting(alice).pk for _ in range(3)] + [jobs_made.finished(bob).pk]

    _, first = api.get("/jobs/", limit=3)
    assert [job["id"] for job in first["jobs"]] == made[::-1][:3]
    assert (first["total"], first["next"]) == (4, f"/api/jobs/?limit=3&cursor={made[1]}")

    _, last = api.get(first["next"].removeprefix("/api"))
    assert ([job["id"] for job in last["jobs"]], last["next"]) == (made[:1], None)


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({"state": "queued"}, [1]),
        ({"state": "open"}, [2, 1]),
        ({"state": "finished"}, [3]),
        ({"owner": "bob"}, [2]),
        ({"owner": "me"}, [3, 1]),
        ({"owner": "me", "state": "open"}, [1]),
    ],
)
def test_it_filters(
    api: Api, alice: User, bob: User, query: dict[str, str], expected: list[int]
) -> None:
    made = [jobs_made.waiting(alice), jobs_made.running(bob), jobs_made.finished(alice)]
    number = {job.pk: at for at, job in enumerate(made, start=1)}

    _, answer = api.get("/jobs/", **query)

    assert [number[job["id"]] for job in answer["jobs"]] == expected


@pytest.mark.parametrize("query", [{"state": "lost"}, {"limit": 0}, {"limit": "x"}, {"offset": -1}])
def test_a_filter_that_is_none_is_422(api: Api, query: dict[str, Any]) -> None:
    status, answer = api.get("/jobs/", **query)

    assert (status, list(fields(answer))) == (422, list(query))


def test_a_list_tells_no_commands(alice: User, bob: User) -> None:
    jobs_made.waiting(alice, command="python secret.py", name="x", env={"A": "secret"})

    _, answer = Api(bob).get("/jobs/")

    assert "secret" not in json.dumps(answer)


def test_it_cancels_once_and_asking_again_is_fine(api: Api, alice: User) -> None:
    job = jobs_made.waiting(alice)

    first = api.post(f"/jobs/{job.pk}/cancel/")
    again = api.post(f"/jobs/{job.pk}/cancel/")

    assert first == (200, {"id": job.pk, "state": "finished", "cancelled": True})
    assert again == (200, {"id": job.pk, "state": "finished", "cancelled": False})


def test_only_owner_and_operators_cancel(alice: User, bob: User, root: User) -> None:
    job = jobs_made.running(alice)

    status, answer = Api(bob).post(f"/jobs/{job.pk}/cancel/")
    assert (status, "Only alice and operators" in answer["detail"]) == (403, True)

    status, answer = Api(root).post(f"/jobs/{job.pk}/cancel/")
    assert (status, answer["state"]) == (200, "stopping")


def test_the_gpus_come_with_their_readings_and_jobs(api: Api, alice: User) -> None:
    monitor_store.record(snapshot(2))
    job = jobs_made.running(alice, on=(1,))

    status, answer = api.get("/gpus/")

    assert (status, answer["hosts"][0]["probe"]) == (200, "simulated")
    idle, busy = answer["gpus"]
    assert (busy["uuid"], busy["memory_total_bytes"], busy["jobs"]) == (
        gpu_uuid(1),
        80 * GIB,
        [str(job.pk)],
    )
    assert (idle["utilization_pct"], idle["state"], idle["jobs"]) == (0.0, None, [])


def test_before_the_first_reading_there_are_no_gpus(api: Api) -> None:
    assert api.get("/gpus/") == (200, {"hosts": [], "gpus": []})


def test_command_lines_of_others_are_left_out(alice: User, bob: User, root: User) -> None:
    monitor_store.record(snapshot(1, [process(user="alice"), process(4_200_002, user="bob")]))

    def commands(user: User) -> list[bool]:
        _, answer = Api(user).get("/processes/")
        return [each["command"] is not None for each in answer["processes"]]

    assert commands(alice) == [True, False]
    assert commands(root) == [True, True]


def test_a_full_queue_is_429_and_other_limits_422(api: Api, alice: User) -> None:
    Quota.objects.create(user=alice, queued=0, gpus=1)

    status, answer = api.submit()
    assert (status, list(fields(answer))) == (429, ["queue"])
    Quota.objects.update(queued=None)
    status, answer = api.submit(gpus=2)
    assert (status, list(fields(answer))) == (422, ["gpus"])


def test_it_tells_why_a_job_waits_and_when_it_may_start(api: Api, alice: User) -> None:
    monitor_store.record(snapshot([gpu(0)], at=timezone.now()))
    first, second = jobs_made.waiting(alice), jobs_made.waiting(alice)

    status, answer = api.get(f"/jobs/{second.pk}/why/")

    assert status == 200
    assert (answer["id"], answer["position"]) == (second.pk, 1)
    assert answer["starts_p50"] < answer["starts_p90"]
    assert [factor["name"] for factor in answer["factors"]] == ["priority", "fair share", "age"]
    assert api.get(f"/jobs/{first.pk}/why/")[1]["starts_p50"] is not None


def test_advice_names_only_changes_that_are_planned_to_help(api: Api, alice: User) -> None:
    full = gpu(0, memory_used_bytes=72 * GIB)
    held = process(on=0, user="dana", uid=1004, memory_bytes=72 * GIB)
    monitor_store.record(snapshot([full, gpu(1)], [held], at=timezone.now()))
    wanted = Requirement(memory_bytes=32 * GIB, gpu_uuid=gpu_uuid(0))
    job = jobs_made.waiting(alice, requirement=wanted)

    status, answer = api.get(f"/jobs/{job.pk}/advice/")

    assert status == 200
    assert answer["reason"] == ""
    assert [each["change"] for each in answer["advice"]] == [
        {"on_gpu": None},
        {"ask": "dana", "gpu": 0},
    ]
    first = answer["advice"][0]
    assert first["text"].startswith("Allow any GPU instead of GPU 0: it would start now;")
    assert first["expected_start"] is not None
    assert first["earlier_s"] > 3600
    assert api.get(f"/jobs/{job.pk}/why/")[1]["advice"] == answer["advice"]


def test_where_nothing_helps_the_reason_says_until_when_it_waits(api: Api, alice: User) -> None:
    monitor_store.record(snapshot([gpu(0)], at=timezone.now()))
    job = jobs_made.waiting(alice, begin_at=timezone.now() + timedelta(hours=1))
    reason = {"code": "BeginTime", "headline": "It does not start yet.", "next_step": "Wait.",
              "tier": 2}  # fmt: skip
    Job.objects.filter(pk=job.pk).update(blockers=[reason])

    _, answer = api.get(f"/jobs/{job.pk}/advice/")

    assert answer["advice"] == []
    assert answer["reason"].startswith(
        "It does not start yet. Wait. It is expected to start about "
    )


def test_a_job_that_does_not_wait_gets_no_advice(api: Api, alice: User) -> None:
    job = jobs_made.finished(alice)

    assert api.get(f"/jobs/{job.pk}/advice/") == (200, {"reason": "", "advice": []})


def test_it_tells_what_would_become_of_a_job_and_submits_nothing(api: Api) -> None:
    monitor_store.record(snapshot([gpu(0)], at=timezone.now()))

    status, answer = api.post("/jobs/what-if/", {"command": "true", "gpus": 1})
    assert (status, answer["blockers"], answer["starts_now"]) == (200, [], True)
    _, answer = api.post("/jobs/what-if/", {"command": "true", "begin": "in 2h"})
    assert answer["starts_now"] is False
    assert answer["blockers"][0]["tier"] == "not yet"
    assert not Job.objects.exists()


def test_a_dry_run_suggests_the_memory_that_earlier_runs_needed(api: Api, alice: User) -> None:
    monitor_store.record(snapshot([gpu(0)], at=timezone.now()))
    jobs_made.past_runs(alice, 5)

    _, answer = api.post("/jobs/what-if/", {"command": "python train.py", "gpu_memory": "80GiB"})

    assert answer["gpu_memory_suggestion"]["runs"] == 5
    assert "peaked at 10.0 GiB" in answer["gpu_memory_suggestion"]["text"]


def test_a_job_tells_what_it_used_of_its_gpus(api: Api, alice: User) -> None:
    jobs_made.past_runs(alice, 1)
    job = Job.objects.get()

    _, answer = api.get(f"/jobs/{job.pk}/")

    assert answer["attempts"][0]["gpu_use"]["peak_memory_bytes"] == 10 * GIB
    assert answer["efficiency"] == "No memory requested, peak 10 GiB."


def test_what_would_be_refused_is_refused_when_one_only_asks(api: Api, alice: User) -> None:
    Quota.objects.create(user=alice, gpus=1)
    yield_request = {"command": "true", "gpus": 2}

    answers = [api.post(path, yield_request) for path in ("/jobs/", "/jobs/what-if/")]

    assert [status for status, _ in answers] == [422, 422]
    assert answers[0][1] == answers[1][1]


def test_an_end_that_has_passed_is_not_told(api: Api, alice: User) -> None:
    job = jobs_made.waiting(alice)
    ends = [timezone.now() + timedelta(hours=hours) for hours in (-1, 1)]
    blockers = [{"code": "X", "text": "x", "tier": 5, "until": at.isoformat()} for at in ends]
    Job.objects.filter(pk=job.pk).update(blockers=blockers)

    for path in (f"/jobs/{job.pk}/", f"/jobs/{job.pk}/why/"):
        has_end = [blocker["until"] is not None for blocker in api.get(path)[1]["blockers"]]
        assert has_end == [False, True]


def test_it_says_in_one_sentence_where_a_job_is(api: Api, alice: User) -> None:
    job = jobs_made.waiting(alice)
    assert "within a second" in api.get(f"/jobs/{job.pk}/why/")[1]["text"]

    api.post(f"/jobs/{job.pk}/cancel/", {})

    text = api.get(f"/jobs/{job.pk}/why/")[1]["text"]
    assert text == "The job ended: cancelled, by alice."


def test_it_holds_and_releases_a_job(api: Api, alice: User) -> None:
    job = jobs_made.waiting(alice)

    assert (
        api.post(f"/jobs/{job.pk}/hold/?reason=lunch", {})[1]["held"]
        == "alice holds it until it is released: lunch."
    )
    assert api.post(f"/jobs/{job.pk}/release/", {})[1]["held"] is None


def test_an_array_answers_with_all_its_jobs_and_is_cancelled_as_one(api: Api) -> None:
    _, made = api.post("/jobs/", {"command": "true", "gpus": 0, "array": "0-2%2"})
    assert made["array"] == list(Job.objects.order_by("pk").values_list("pk", flat=True))

    api.post(f"/jobs/{made['id']}/cancel/?array=true", {})
    assert Job.objects.filter(outcome="cancelled").count() == 3


def test_an_array_is_held_and_released_as_one(api: Api, alice: User, root: User) -> None:
    _, made = api.post("/jobs/", {"command": "true", "gpus": 0, "array": "0-2"})
    jobs = Job.objects.filter(array=made["id"])

    _, answer = api.post(f"/jobs/{made['id']}/hold/?array=true&reason=no%20data")
    assert answer["held"] == "alice holds it until it is released: no data."
    assert not jobs.filter(held="").exists()

    # An operator's hold stays when the owner releases the others.
    jobs.filter(array_index=2).update(held="root holds it until it is released.", held_by="root")
    assert api.post(f"/jobs/{made['id']}/release/?array=true")[1]["held"] is None
    assert list(jobs.exclude(held="").values_list("array_index", flat=True)) == [2]


def test_the_states_of_an_array_are_listed_by_index(api: Api) -> None:
    _, made = api.post("/jobs/", {"command": "true", "gpus": 0, "array": "4,2"})
    job = Job.objects.get(array_index=2)
    jobs_made.place_again(job)
    Job.objects.filter(pk=job.pk).update(started_at=timezone.now())
    jobs_made.end(job)

    _, array = api.get(f"/jobs/{made['id']}/array/")
    assert array["array"] == made["id"]
    states = [(job["index"], job["state"], job["outcome"]) for job in array["jobs"]]
    assert states == [(2, "finished", "succeeded"), (4, "queued", None)]
    assert [job["has_started"] for job in array["jobs"]] == [True, False]

    _, single = api.submit()
    assert api.get(f"/jobs/{single['id']}/array/")[0] == 404


def test_the_names_of_the_tiers_stay_as_clients_know_them() -> None:
    assert [serialise.tier_of({"tier": int(tier)}) for tier in Tier] == [
        "needs a person",
        "not yet",
        "my limits",
        "state of the machine",
        "others are there",
    ]


def test_rest_leaves_out_no_field_of_a_job_and_names_its_task_in_slurm(
    alice: User, client: Client
) -> None:
    job = jobs_made.running(alice)
    Attempt.objects.update(engine="slurm", engine_ref="71", node="n1")
    client.force_login(alice)

    answer = client.get(f"/api/jobs/{job.pk}/").json()

    made = serialise.body(Job.objects.get(), alice, timezone.now())
    assert set(answer) == set(made)
    (attempt,) = answer["attempts"]
    assert set(attempt) == set(made["attempts"][0])
    assert [attempt[name] for name in ("engine", "engine_ref", "node")] == ["slurm", "71", "n1"]
