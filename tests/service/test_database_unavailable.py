"""Answers to users and operators while the database is away or its file is gone."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from django.contrib.auth.models import User
from django.contrib.sessions.backends.db import SessionStore
from django.db import InterfaceError, OperationalError
from django.test import Client
from django.utils import timezone

from gpucoord_site.http import errors
from monitor.owners import rows
from monitor.runtime.rows import database, leases
from monitor.runtime.rows.item_isolation import FaultLog
from scheduler.jobs.pages import serialise as job_views

AsUser = Callable[[User], Client]


@pytest.fixture(autouse=True)
def _nothing_logged_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(errors, "faults", FaultLog(errors.logger))


def _raise(error: Exception) -> Callable[..., None]:
    def away(*_: object, **__: object) -> None:
        raise error

    return away


@pytest.fixture
def quiet(as_user: AsUser, alice: User) -> Client:
    browser = as_user(alice)
    browser.raise_request_exception = False
    return browser


@pytest.mark.parametrize(
    "error", [OperationalError("the server is away"), InterfaceError("closed")]
)
def test_rest_answers_503_with_retry_after(
    alice: User, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    token = rows.create_token(alice, timezone.now())[1]
    client = Client(raise_request_exception=False, headers={"authorization": f"Bearer {token}"})
    monkeypatch.setattr(job_views, "filtered", _raise(error))

    answer = client.get("/api/jobs/")

    assert answer.status_code == 503
    assert answer["Retry-After"] == "10"
    assert answer.json()["detail"] == errors.UNAVAILABLE
    assert answer.headers["content-type"] == "application/problem+json"


def test_rest_answers_503_when_the_token_cannot_be_looked_up(
    client: Client, db: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "find", _raise(OperationalError("away")))
    client.raise_request_exception = False

    assert client.get("/api/jobs/", headers={"authorization": "Bearer x"}).status_code == 503


@pytest.mark.parametrize("path", ["/", "/jobs/", "/status/"])
def test_pages_answer_503_when_sessions_cannot_be_read(
    quiet: Client, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setattr(SessionStore, "load", _raise(OperationalError("away")))

    answer = quiet.get(path)

    assert answer.status_code == 503
    assert answer["Retry-After"] == "10"
    assert "Try again in 10 seconds" in answer.content.decode()
    assert "Try again</a>" in answer.content.decode()


def test_a_fault_of_ours_is_still_500(quiet: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_views, "filtered", _raise(RuntimeError("a fault")))

    assert quiet.get("/api/jobs/").status_code == 500


def test_it_is_logged_once(
    quiet: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(SessionStore, "load", _raise(OperationalError("away")))

    with caplog.at_level(logging.WARNING):
        for _ in range(5):
            quiet.get("/")
            quiet.get("/api/jobs/")

    assert len(caplog.records) == 1
    assert "away" in caplog.text


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A database file that this process has opened."""
    path = tmp_path / "gpucoord.sqlite3"
    sqlite3.connect(path).close()
    path.touch()
    opened = database.OpenedFile()
    opened.remember(path)
    monkeypatch.setattr(database, "opened", opened)
    return path


def test_a_database_file_that_is_there_is_no_problem(file: Path) -> None:
    assert database.file_problem() is None
    database.check_file()


@pytest.mark.parametrize("is_made_again", [False, True])
def test_a_deleted_database_file_is_reported_in_one_sentence(
    file: Path, quiet: Client, is_made_again: bool
) -> None:
    # As an open connection does, this keeps its number from being given again.
    with file.open():
        file.unlink()
        if is_made_again:
            file.touch()
        pages = [quiet.get(path) for path in ("/", "/login/", "/api/jobs/", "/metrics")]
        health = quiet.get("/healthz")

    for page in pages:
        assert page.status_code == 503
        assert "gpucoord.sqlite3 was deleted or replaced" in page.content.decode()
        assert "from a backup" in page.content.decode()
        assert page["Retry-After"]
    assert health.status_code == 503
    assert health.json()["status"] == "database file gone"
    assert "from a backup" in health.json()["problem"]
    assert str(file.parent) not in pages[0].content.decode()


def test_loops_do_not_work_on_a_deleted_database(file: Path) -> None:
    file.unlink()

    with pytest.raises(database.DatabaseFileGone, match="deleted or replaced"):
        database.check_file()


def test_healthz_still_reports_an_absent_database(
    client: Client, db: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "facts", _raise(OperationalError("away")))

    assert client.get("/healthz").json() == {"status": "no database", "loops": {}}
