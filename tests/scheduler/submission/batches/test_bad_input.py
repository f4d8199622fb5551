"""Bad input to scripts and batches by REST, form and command line is refused with the reason."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client

from gpucoord_site.cli import batch, submit
from scheduler.facts.scripts import MOST_OPEN_BATCHES
from scheduler.models import Batch, Job, ScriptDefinition
from tests.builders import NOW
from tests.cli_bridge import connect_as

pytestmark = pytest.mark.django_db
UNKNOWN = "There is no script of this name; known scripts: "
NO_ITEMS = "A batch needs at least one item."
SCHEMA = {
    "properties": {"file": {"type": "string", "pattern": "^/"}, "n": {"type": "integer"}},
    "required": ["file"],
}
Say = Callable[..., str]


@pytest.fixture(autouse=True)
def run_script() -> ScriptDefinition:
    return ScriptDefinition.objects.create(
        name="run", argv=["run", "{file}", ["-n", "{n}"]], schema=SCHEMA, gpu="no",
        item_argument="file",
    )  # fmt: skip


def logged_in(person: User) -> Client:
    client = Client()
    client.force_login(person)
    return client


def by_rest(person: User, path: str, body: dict[str, Any], status: int = 422) -> str:
    """The errors as "field: message" lines."""
    answer = logged_in(person).post(path, json.dumps(body), content_type="application/json")
    assert answer.status_code == status, answer.content
    errors = answer.json().get("errors", [])
    return "\n".join(f"{one['field']}: {one['message']}" for one in errors)


def by_form(person: User, path: str, values: dict[str, Any], status: int = 422) -> str:
    answer = logged_in(person).post(path, values)
    assert answer.status_code == status
    return answer.content.decode()


def nothing_was_stored() -> bool:
    return not (Batch.objects.exists() or Job.objects.exists())


def test_an_unknown_script_is_named_everywhere(
    alice: User, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert UNKNOWN in by_rest(alice, "/api/jobs/", {"script": "none"})
    assert UNKNOWN in by_rest(alice, "/api/batches/", {"script": "none", "items": ["a"]})
    assert "none is not one of" in by_form(alice, "/batches/", {"script": "none", "items": "a"})
    assert logged_in(alice).post("/scripts/none/", {}).status_code == 404
    connect_as(alice, monkeypatch)
    assert submit.submit(["--detach", "--script", "none"]) == 125
    assert UNKNOWN in capsys.readouterr().err
    (tmp_path / "a.wav").touch()
    assert batch.batch(["none", "--input", str(tmp_path)]) == 125
    assert UNKNOWN in capsys.readouterr().err
    assert nothing_was_stored()


def test_a_violation_of_the_schema_names_the_argument_everywhere(
    alice: User, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    wrong = {"script": "run", "script_args": {"file": "/a", "n": "many"}}
    sentence = "&#x27;many&#x27; is not of type &#x27;integer&#x27;"

    assert "script_args.n: 'many' is not of type 'integer'." in by_rest(alice, "/api/jobs/", wrong)
    body = {"script": "run", "script_args": {"n": "many"}, "items": ["/a"]}
    assert "script_args.n: 'many' is not" in by_rest(alice, "/api/batches/", body)
    values = {"script_args.file": "/a", "script_args.n": "many"}
    assert sentence in by_form(alice, "/scripts/run/", values)
    form = {"script": "run", "script_args.n": "many", "items": "/a"}
    assert sentence in by_form(alice, "/batches/", form)
    connect_as(alice, monkeypatch)
    (tmp_path / "a.wav").touch()
    assert batch.batch(["run", "--input", str(tmp_path), "n=many"]) == 125
    assert "script_args.n: 'many' is not of type 'integer'" in capsys.readouterr().err
    assert nothing_was_stored()


def test_an_item_that_the_script_cannot_take_is_named_by_its_place(
    alice: User, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    form = {"script": "run", "items": "/a\nb"}
    assert "Item 2: &#x27;b&#x27; does not match" in by_form(alice, "/batches/", form)
    connect_as(alice, monkeypatch)
    (tmp_path / "list.txt").write_text("/a\nb\n")
    assert batch.batch(["run", "--input", str(tmp_path / "list.txt")]) == 125
    assert "'b' does not match" in capsys.readouterr().err
    assert nothing_was_stored()


def test_a_batch_without_items_is_refused_everywhere(
    alice: User, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert NO_ITEMS in by_rest(alice, "/api/batches/", {"command": "x", "items": []})
    assert NO_ITEMS in by_form(alice, "/batches/", {"command": "x", "items": " \n"})
    connect_as(alice, monkeypatch)
    assert batch.batch(["run", "--input", str(tmp_path)]) == 125
    assert "there are no files in it" in capsys.readouterr().err
    assert nothing_was_stored()


def test_a_million_items_are_refused_everywhere(
    alice: User, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    by_rest(alice, "/api/batches/", {"command": "x", "items": ["1"] * 10**6}, status=413)
    lines = "1\n" * 10**6
    file = SimpleUploadedFile("items.txt", f"{lines}{lines}".encode())
    page = by_form(alice, "/batches/", {"command": "x", "items": lines})
    assert "A batch has at most 100000 items, not 1000000" in page
    page = by_form(alice, "/batches/", {"command": "x", "file": file})
    assert "larger than 2 MiB" in page
    connect_as(alice, monkeypatch)
    (tmp_path / "list.txt").write_text(lines)
    assert batch.batch(["--command", "x", "--input", str(tmp_path / "list.txt")]) == 125
    assert "too large" in capsys.readouterr().err
    assert nothing_was_stored()


def test_a_file_that_is_no_text_is_refused(alice: User) -> None:
    file = SimpleUploadedFile("items.txt", b"\xff\xfe\x00")

    page = by_form(alice, "/batches/", {"command": "x", "file": file})

    assert "not text in UTF-8" in page
    assert nothing_was_stored()


def test_files_that_are_missing_are_named(
    alice: User, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    connect_as(alice, monkeypatch)

    for source in ("none.txt", "none/*.wav", "none"):
        assert batch.batch(["run", "--input", str(tmp_path / source)]) == 125
        assert f"{tmp_path / source} is no file" in capsys.readouterr().err
    assert nothing_was_stored()


def test_a_user_has_a_limited_number_of_open_batches_and_of_items_a_day(
    alice: User, bob: User
) -> None:
    request = {"command": "x", "gpus": 0}
    Batch.objects.bulk_create(
        Batch(owner=alice, name="b", request=request, total_items=1, created_at=NOW)
        for _ in range(MOST_OPEN_BATCHES)
    )
    body = {"command": "x", "items": ["a"], "gpus": 0}

    assert "50 batches that have not ended" in by_rest(alice, "/api/batches/", body)
    by_rest(bob, "/api/batches/", body, status=201)
    Batch.objects.filter(owner=bob).update(total_items=10**6)
    assert "at most 1000000 items in 24 hours" in by_rest(bob, "/api/batches/", body)


def test_each_missing_argument_is_named(alice: User) -> None:
    schema = {**SCHEMA, "required": ["file", "n"]}
    ScriptDefinition.objects.filter(name="run").update(schema=schema)

    assert by_rest(alice, "/api/jobs/", {"script": "run"}) == (
        "script_args.file: This argument is required.\nscript_args.n: This argument is required."
    )


def test_an_unknown_batch_or_template_is_named(root: User) -> None:
    client = logged_in(root)
    batch_of = client.get("/api/batches/77/")
    signals = client.post(
        "/api/idle-templates/none/signals/", '{"quality": 1}', content_type="application/json"
    )

    assert (batch_of.status_code, batch_of.json()["detail"]) == (404, "There is no batch 77.")
    assert signals.status_code == 404
    assert signals.json()["detail"] == "There is no idle template 'none'."


def test_the_type_of_the_items_is_explained(alice: User) -> None:
    body = {"command": "true", "items": "a.wav"}

    assert by_rest(alice, "/api/batches/", body) == "items: Write a list."
