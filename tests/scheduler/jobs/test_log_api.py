from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from scheduler.models import Job
from tests import jobs_made

pytestmark = pytest.mark.django_db
AsUser = Callable[[User], Client]


@pytest.fixture
def job(alice: User, data: Path) -> Job:
    job = jobs_made.running(alice)
    jobs_made.write_log(data, job, b"0123456789")
    return job


def log(browser: Client, job: Job, **query: Any) -> Any:
    return browser.get(f"/api/jobs/{job.pk}/log/", query)


def test_it_gives_the_bytes_as_they_are(job: Job, data: Path, alice: User, as_user: AsUser) -> None:
    jobs_made.write_log(data, job, b"\x00\xff\x1b[31m\r\n")

    response = log(as_user(alice), job)

    assert response.content == b"0123456789\x00\xff\x1b[31m\r\n"
    assert response["Content-Type"] == "text/plain; charset=utf-8"


def test_it_says_where_to_go_on(job: Job, alice: User, as_user: AsUser) -> None:
    response = log(as_user(alice), job, offset=2, limit=3)

    assert response.content == b"234"
    assert (response["X-Log-Next-Offset"], response["X-Log-Size"]) == ("5", "10")
    assert response["X-Job-State"] == "running"


def test_it_gives_the_end(job: Job, alice: User, as_user: AsUser) -> None:
    assert log(as_user(alice), job, tail=3).content == b"789"


def test_a_job_that_waits_has_an_empty_log(alice: User, data: Path, as_user: AsUser) -> None:
    response = log(as_user(alice), jobs_made.waiting(alice))

    assert (response.status_code, response.content) == (200, b"")
    assert response["X-Job-State"] == "queued"


def test_only_owner_and_operators_read_it(job: Job, bob: User, root: User, as_user: AsUser) -> None:
    assert log(as_user(bob), job).status_code == 403
    assert log(as_user(root), job).status_code == 200


def test_what_a_job_writes_never_runs_as_a_page(job: Job, alice: User, as_user: AsUser) -> None:
    response = log(as_user(alice), job)

    assert response["Content-Security-Policy"].startswith("sandbox")
    assert response["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize(
    "query", [{"offset": -1}, {"limit": 0}, {"limit": 10**9}, {"tail": "x"}, {"offset": 2**70}]
)
def test_an_offset_that_is_none_is_422(
    job: Job, alice: User, as_user: AsUser, query: dict[str, Any]
) -> None:
    assert log(as_user(alice), job, **query).status_code == 422


def test_an_earlier_attempt_has_its_own_log(
    job: Job, data: Path, alice: User, as_user: AsUser
) -> None:
    jobs_made.write_log(data, job, b"other", number=2)

    assert log(as_user(alice), job, attempt=2).content == b"other"
