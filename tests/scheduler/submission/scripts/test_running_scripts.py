from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from gpucoord_site.cli import batch, submit
from scheduler.models import Batch, Job, ScriptDefinition
from tests.cli_bridge import connect_as
from tests.processes.scheduling import Scheduler

SCHEMA: dict[str, Any] = {
    "properties": {
        "words": {"type": "array", "items": {"type": "string"}},
        "count": {"type": "integer", "minimum": 1, "maximum": 9, "default": 2},
        "loud": {"type": "boolean"},
        "kind": {"enum": ["one", "two"]},
    },
    "required": ["words"],
}
WRITES = 'printf \'{"words": %d}\' "$#" > "$GPUCOORD_RESULT_FILE"'


@pytest.fixture
def echo(db: None) -> ScriptDefinition:
    return ScriptDefinition.objects.create(
        name="echo", argv=["/bin/sh", "-c", WRITES, "{count}", "{words}"], schema=SCHEMA,
        gpu="no", task_type="process", usual_s=30, item_argument="",
    )  # fmt: skip


def logged_in(person: User) -> Client:
    client = Client()
    client.force_login(person)
    return client


def post(person: User, path: str, body: dict[str, Any]) -> Any:
    return logged_in(person).post(path, json.dumps(body), content_type="application/json")


@pytest.mark.usefixtures("echo")
def test_a_script_becomes_a_job_with_its_command_and_requests(alice: User) -> None:
    body = {"script": "echo", "script_args": {"words": ["a; b", "$c"]}}
    answer = post(alice, "/api/jobs/", body)

    assert answer.status_code == 201
    job = Job.objects.get(pk=answer.json()["id"])
    assert job.argv == ["/bin/sh", "-c", WRITES, "2", "a; b", "$c"]
    assert (job.name, job.gpus, job.estimate_s, job.task_type) == ("echo", 0, 30, "process")
    shown = logged_in(alice).get(f"/api/jobs/{job.pk}/").json()
    assert (shown["script"], shown["task_class"]) == ("echo", "script")
    assert shown["script_args"] == {"words": ["a; b", "$c"], "count": 2}


@pytest.mark.usefixtures("echo")
@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"script": "none"}, "script"),
        ({"script": "echo", "command": "true", "script_args": {"words": []}}, "script"),
        ({"script": "echo"}, "script_args.words"),
        ({"script": "echo", "script_args": {"words": ["a"], "count": 10}}, "script_args.count"),
        ({"script": "echo", "script_args": {"words": ["a"], "x": 1}}, "script_args.x"),
        ({"command": "true", "script_args": {"x": 1}}, "script_args"),
    ],
)
def test_what_is_wrong_is_named(alice: User, body: dict[str, Any], field: str) -> None:
    answer = post(alice, "/api/jobs/", body)

    assert answer.status_code == 422
    assert [error["field"] for error in answer.json()["errors"]] == [field]
    assert not Job.objects.exists()


def test_operators_add_scripts_and_wrong_ones_are_refused(root: User, alice: User) -> None:
    new = {"name": "mine", "argv": ["true", "{a}"], "schema": {"properties": {"a": {}}}}

    assert post(alice, "/api/scripts/", new).status_code == 403
    assert post(root, "/api/scripts/", new).status_code == 201
    assert post(root, "/api/scripts/", new).status_code == 422
    wrong = post(root, "/api/scripts/", new | {"name": "other", "argv": ["true", "{b}"]})
    assert [error["field"] for error in wrong.json()["errors"]] == ["argv"]
    names = [s["name"] for s in logged_in(alice).get("/api/scripts/").json()["scripts"]]
    assert "mine" in names


@pytest.mark.usefixtures("echo")
def test_the_form_follows_from_the_schema_and_submits(alice: User) -> None:
    client = logged_in(alice)
    page = client.get("/scripts/echo/").content.decode()
    assert all(f'name="script_args.{name}"' in page for name in ("words", "count", "loud", "kind"))

    wrong = client.post("/scripts/echo/", {"script_args.words": "a", "script_args.count": "10"})
    assert wrong.status_code == 422
    assert "10 is greater than the maximum of 9" in wrong.content.decode()
    done = client.post("/scripts/echo/", {"script_args.words": "a\nb c", "script_args.loud": "on"})

    job = Job.objects.get()
    assert (done.status_code, done["Location"]) == (302, f"/jobs/{job.pk}/")
    assert job.script_args == {"words": ["a", "b c"], "count": 2, "loud": True}


@pytest.mark.usefixtures("echo")
def test_a_script_that_does_not_exist_has_no_page(alice: User) -> None:
    client = logged_in(alice)

    assert client.get("/scripts/nothing/").status_code == 404
    assert "echo" in client.get("/scripts/").content.decode()


def test_the_admin_refuses_a_definition_that_cannot_work(
    root: User, echo: ScriptDefinition
) -> None:
    row = echo
    form = {
        "name": "echo", "argv": '["x", "{nothing}"]', "schema": "{}", "gpu": "no",
        "task_type": "embed", "description": "", "item_argument": "",
    }  # fmt: skip
    address = f"/admin/scheduler/scriptdefinition/{row.pk}/change/"

    page = logged_in(root).post(address, form)

    assert "no property of the schema" in page.content.decode()


@pytest.fixture
def scheduler(data: Path) -> Iterator[Scheduler]:
    scheduler = Scheduler()
    yield scheduler
    scheduler.close()


@pytest.mark.processes
@pytest.mark.django_db(transaction=True)
def test_a_script_runs_and_its_result_is_stored(scheduler: Scheduler, root: User) -> None:
    ScriptDefinition.objects.create(
        name="echo", argv=["/bin/sh", "-c", WRITES, "sh", "{words}"], schema=SCHEMA, gpu="no"
    )
    body = {"script": "echo", "script_args": {"words": ["a", "b"]}}
    number = post(root, "/api/jobs/", body).json()["id"]

    job = scheduler.run_to(Job.objects.get(pk=number))

    assert job.outcome == "succeeded"
    shown = logged_in(root).get(f"/api/jobs/{number}/").json()["result"]
    assert (shown["task_id"], shown["output"]) == (number, {"words": 2})
    assert shown["duration"] >= 0


@pytest.fixture
def run_script(db: None) -> ScriptDefinition:
    schema = {
        "properties": {"file": {"type": "string", "pattern": "^/"}, "n": {"type": "integer"}},
        "required": ["file"],
    }
    return ScriptDefinition.objects.create(
        name="run", argv=["run", "{file}", ["-n", "{n}"]], schema=schema, gpu="no",
        item_argument="file",
    )  # fmt: skip


def test_the_command_line_submits_a_script_with_its_arguments(
    alice: User,
    run_script: ScriptDefinition,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    connect_as(alice, monkeypatch)

    assert submit.submit(["--detach", "--script", "run", "file=/data/a", "n=3"]) == 0

    job = Job.objects.get()
    assert (job.script, job.argv) == ("run", ["run", "/data/a", "-n", "3"])
    assert str(job.pk) in capsys.readouterr().out


def test_the_command_line_names_a_wrong_argument_as_the_schema_does(
    alice: User,
    run_script: ScriptDefinition,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    connect_as(alice, monkeypatch)

    assert submit.submit(["--detach", "--script", "run", "file=/a", "n=many"]) != 0
    assert "script_args.n" in capsys.readouterr().err
    assert submit.submit(["--detach", "--script", "none", "file=/a"]) != 0
    assert "There is no script of this name; known scripts: " in capsys.readouterr().err
    assert not Job.objects.exists()


def test_the_command_line_submits_a_batch_and_names_missing_files(
    alice: User,
    run_script: ScriptDefinition,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    connect_as(alice, monkeypatch)
    missing = str(tmp_path / "none")

    assert batch.batch(["run", "--input", missing]) == 125
    assert f"{missing} is no file" in capsys.readouterr().err
    (tmp_path / "empty.txt").touch()
    assert batch.batch(["run", "--input", str(tmp_path / "empty.txt")]) != 0
    assert "at least one item" in capsys.readouterr().err
    assert not Batch.objects.exists()

    (tmp_path / "list.txt").write_text("/a\n/b\n")
    assert batch.batch(["run", "--input", str(tmp_path / "list.txt"), "--gpu-mode", "shared"]) == 0
    assert list(Batch.objects.get().items.values_list("input", flat=True)) == ["/a", "/b"]
