"""The form to add a model from a template, with its dry run."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from django.contrib.auth.models import User
from django.test import Client

from monitor.gpus.rows import snapshot as snapshots
from scheduler.language_models.model_services import rows, steps
from scheduler.models import ModelService
from scheduler.runner import accounts
from scheduler.runner.accounts import Account
from tests.builders import snapshot

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("data")]
AsUser = Callable[[User], Client]
PATH = "/add-model/"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An account that may enter this folder, and programs below it on its PATH."""
    account = Account("models", "/tmp", uid=54_321, gid=54_321)
    monkeypatch.setattr(accounts, "account_of_service", lambda _chosen, run_as: account)
    monkeypatch.setattr(accounts, "search_path", lambda _account: str(tmp_path / "bin"))
    for each in (*tmp_path.parents, tmp_path):
        if each.owner() == "root" or os.geteuid() == each.stat().st_uid:
            each.chmod(each.stat().st_mode | 0o001)
    program = tmp_path / "bin" / "llama-server"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    return tmp_path


def form(**changes: str) -> dict[str, str]:
    return {"template": "llama.cpp", "name": "qwen:14b", "memory": "20GiB"} | changes


class TestRights:
    def test_only_operators_open_and_send_it(self, alice: User, as_user: AsUser) -> None:
        for browser, status in ((Client(), 302), (as_user(alice), 403)):
            assert browser.get(PATH).status_code == status
            assert browser.post(PATH, form(add="1")).status_code == status
        assert not ModelService.objects.exists()

    def test_forms_of_other_sites_are_refused(self, root: User) -> None:
        browser = Client(enforce_csrf_checks=True)
        browser.force_login(root, "django.contrib.auth.backends.ModelBackend")

        assert browser.post(PATH, form(source="/m", add="1")).status_code == 403


class TestAdding:
    def test_it_may_state_the_usual_time_of_a_boot(self, root: User, as_user: AsUser) -> None:
        body = form(add="1", source="/m/a.gguf", usual_boot="45s")

        as_user(root).post(PATH, body)

        assert rows.expected_boot_s(ModelService.objects.get()) == 45.0

    @pytest.mark.parametrize("text", ["45", "soon", "3d"])
    def test_a_time_of_a_boot_that_cannot_be_is_refused(
        self, root: User, as_user: AsUser, text: str
    ) -> None:
        body = form(add="1", source="/m/a.gguf", usual_boot=text)

        answer = as_user(root).post(PATH, body)

        assert (answer.status_code, ModelService.objects.count()) == (422, 0)
        assert 'id="id_usual_boot_error"' in answer.content.decode()

    @pytest.mark.parametrize(
        ("fields", "words", "health_path"),
        [
            ({"source": "/m/a b.gguf"}, ["--model", "/m/a b.gguf"], "/health"),
            ({"template": "vLLM", "source": "Qwen/Q"}, ["vllm", "serve", "Qwen/Q"], "/health"),
            ({"template": "Ollama"}, ["ollama", "serve"], "/"),
            ({"template": "own", "command": "serve --at {port}"}, ["{port}"], "/health"),
        ],
        ids=["llama.cpp", "vLLM", "Ollama", "own"],
    )
    def test_a_template_becomes_a_service(
        self,
        root: User,
        as_user: AsUser,
        fields: dict[str, str],
        words: list[str],
        health_path: str,
    ) -> None:
        answer = as_user(root).post(PATH, form(add="1", **fields))

        row = ModelService.objects.get()
        assert answer["Location"] == "/models/qwen:14b/"
        assert (row.memory_mib, row.health_path) == (20 * 1024, health_path)
        assert set(words) <= set(row.argv)

    @pytest.mark.parametrize(
        ("fields", "text"),
        [
            ({}, "Write the file or the name of the model."),
            ({"source": "/m", "name": "a b"}, "Write a name of letters"),
            ({"source": "/m", "memory": "20"}, "20"),
            ({"source": "/m", "memory": "900GiB"}, "900 GiB"),
            ({"source": "/m\x1b"}, "U+001B"),
            ({"template": "own", "command": "serve"}, "Write {port} where"),
            ({"template": "own", "command": "serve '"}, "quotation mark"),
            ({"template": "sh -c", "source": "/m"}, "Select a valid choice"),
        ],
    )
    def test_a_mistake_is_named_and_nothing_stored(
        self, root: User, as_user: AsUser, fields: dict[str, str], text: str
    ) -> None:
        snapshots.record(snapshot(1))
        answer = as_user(root).post(PATH, form(add="1", **fields))

        assert answer.status_code == 422
        assert text in answer.text
        assert not ModelService.objects.exists()


class TestDryRun:
    def findings(self, user: User, as_user: AsUser, **fields: str) -> list[tuple[bool | None, str]]:
        answer = as_user(user).post(PATH, form(check="1", **fields))
        assert not ModelService.objects.exists()
        return [(each.is_ok, each.text) for each in answer.context["findings"]]

    def test_it_shows_the_command_and_starts_nothing(
        self, root: User, as_user: AsUser, folder: Path
    ) -> None:
        snapshots.record(snapshot(1))
        (folder / "m.gguf").touch(0o644)
        answer = as_user(root).post(PATH, form(check="1", source=f"{folder}/m.gguf"))

        assert f"--model {folder}/m.gguf --alias qwen:14b" in answer.text
        assert [each.is_ok for each in answer.context["findings"]] == [True, True, True]

    def test_what_the_account_can_not_use_is_named(
        self, root: User, as_user: AsUser, folder: Path
    ) -> None:
        (folder / "closed").mkdir(0o700)
        (folder / "closed" / "m.gguf").touch()
        (folder / "link").symlink_to(folder / "closed" / "m.gguf")
        os.chown(folder / "link", 54_322, -1, follow_symlinks=False)
        checked = [
            self.findings(root, as_user, source=f"{folder}/{name}")[1]
            for name in ("closed/m.gguf", "closed/other.gguf", "missing.gguf", "link")
        ]

        closed = f"models may not enter {folder}/closed on this host."
        # A closed folder shows neither what is in it nor what is not.
        assert checked[:2] == [(False, closed), (False, closed)]
        assert "No such file" in checked[2][1]
        assert checked[3][0] is None

    def test_a_program_that_is_not_there_is_named(
        self, root: User, as_user: AsUser, folder: Path
    ) -> None:
        is_ok, text = self.findings(root, as_user, template="vLLM", source="Qwen/Q")[0]

        assert (is_ok, "vllm is in no folder of PATH" in text) == (False, True)


def test_env_is_looked_through() -> None:
    argv = ["env", "OLLAMA_HOST=127.0.0.1:9000", "ollama", "serve"]

    assert steps.policy.program_of(argv) == "ollama"
