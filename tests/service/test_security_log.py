from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import transaction
from django.test import Client

from gpucoord_site.service.logs import formatter
from monitor.journal.rows import events
from monitor.models import ApiToken
from tests.builders import NOW, PASSWORD, gpu_uuid

pytestmark = pytest.mark.django_db
Lines = Callable[[], list[dict[str, Any]]]


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Lines:
    """The lines of ours so far, as a machine reads them."""
    caplog.set_level(logging.INFO)

    def read() -> list[dict[str, Any]]:
        ours = [r for r in caplog.records if hasattr(r, "kind")]
        return [json.loads(formatter("json").format(record)) for record in ours]

    return read


def names(lines: Lines) -> list[str]:
    return [line["event"] for line in lines()]


def log_in(client: Client, name: str, password: str) -> None:
    client.post("/login/", {"username": name, "password": password}, REMOTE_ADDR="192.0.2.9")


def test_a_wrong_password_is_logged_without_the_password(
    client: Client, alice: User, lines: Lines
) -> None:
    log_in(client, "alice", "hush-hush")

    [line] = lines()
    assert (line["event"], line["user"], line["address"], line["level"]) == (
        "LOGIN_FAILED",
        "alice",
        "192.0.2.9",
        "warning",
    )
    assert line["text"] == "A login as alice failed"
    assert "hush" not in json.dumps(line)


def test_a_password_typed_as_the_name_is_not_logged(
    client: Client, alice: User, lines: Lines, caplog: pytest.LogCaptureFixture
) -> None:
    log_in(client, "hush-hush", "")
    log_in(client, "hush-hush", "x")

    assert {line["user"] for line in lines()} == {"(no such user)"}
    assert "hush" not in caplog.text


def test_login_and_logout_are_logged(client: Client, alice: User, lines: Lines) -> None:
    log_in(client, "alice", PASSWORD)
    client.post("/logout/")

    assert names(lines) == ["LOGGED_IN", "LOGGED_OUT"]


def test_a_pause_after_wrong_passwords_is_logged(
    client: Client, alice: User, lines: Lines, settings: Any
) -> None:
    settings.AXES_FAILURE_LIMIT = 2

    log_in(client, "alice", "wrong")
    log_in(client, "alice", "wrong")

    assert "LOGIN_PAUSED" in names(lines)


@pytest.mark.parametrize("path", ["/api/gpus/", "/metrics"])
def test_a_refused_token_is_logged_without_the_token(
    client: Client, lines: Lines, path: str
) -> None:
    client.get(path, headers={"authorization": "Bearer gpc_hush"}, REMOTE_ADDR="192.0.2.9")

    [line] = lines()
    assert (line["event"], line["path"], line["address"]) == ("TOKEN_REFUSED", path, "192.0.2.9")
    assert "hush" not in json.dumps(line)


def test_tokens_created_and_revoked_in_the_admin_are_logged(
    client: Client, root: User, alice: User, lines: Lines
) -> None:
    client.force_login(root, "django.contrib.auth.backends.ModelBackend")
    answer = client.post("/admin/monitor/apitoken/add/", {"user": alice.pk, "name": "mine"})
    ApiToken.objects.get().delete()

    made, revoked = lines()[-2:]
    assert (made["event"], made["owner"], made["by"]) == ("TOKEN_MADE", "alice", "root")
    assert (revoked["event"], revoked["owner"]) == ("TOKEN_REVOKED", "alice")
    [text] = re.findall(r"gpc_[\w-]{43}", answer.content.decode())
    assert text not in json.dumps(lines())


def tell(**changes: Any) -> None:
    events.add("GPU_LOST", "GPU 1 is lost", now=NOW, severity="error", **changes)


def test_an_event_is_a_line_with_its_name_and_what_it_is_about(
    lines: Lines, django_capture_on_commit_callbacks: Any
) -> None:
    with django_capture_on_commit_callbacks(execute=True):
        tell(gpu_uuid=gpu_uuid(1), host="gpubox")

    [line] = lines()
    assert line.pop("timestamp")
    # Left in the record by the handler that gathers the test's records.
    line.pop("message", None)
    assert line == {
        "event": "GPU_LOST",
        "text": "GPU 1 is lost",
        "level": "error",
        "logger": "monitor.journal.rows.events",
        "gpu": gpu_uuid(1),
        "host": "gpubox",
    }


@pytest.mark.django_db(transaction=True)
def test_an_event_that_is_rolled_back_is_not_logged(lines: Lines) -> None:
    with transaction.atomic():
        tell()
        transaction.set_rollback(True)

    assert lines() == []


@pytest.mark.django_db(transaction=True)
def test_past_events_are_not_logged(lines: Lines) -> None:
    with events.unlogged():
        tell()
    tell(logged=False)

    assert lines() == []
    tell()
    assert names(lines) == ["GPU_LOST"]
