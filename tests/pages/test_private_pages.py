from __future__ import annotations

from collections.abc import Callable

import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.test import Client

from gpucoord_site.http import errors
from monitor.owners import rows
from scheduler.models import Job
from tests import jobs_made
from tests.builders import NOW

pytestmark = pytest.mark.django_db


@pytest.fixture
def job(alice: User, data: object) -> Job:
    return jobs_made.running(alice)


PAGES = ["/", "/jobs/", "/processes/", "/events/", "/me/", "/nothing/", "/login/", "/admin/"]


@pytest.mark.parametrize("page", PAGES)
def test_no_cache_keeps_a_page(root: User, as_user: Callable[[User], Client], page: str) -> None:
    assert "no-store" in as_user(root).get(page)["Cache-Control"]


def test_no_cache_keeps_the_pages_and_the_rest_answers_of_a_job(
    alice: User, job: Job, as_user: Callable[[User], Client]
) -> None:
    _, token = rows.create_token(alice, NOW)
    bearer = {"Authorization": f"Bearer {token}"}

    assert as_user(alice).get(f"/jobs/{job.pk}/")["Cache-Control"] == "private, no-store"
    for path in ("", "why/", "log/"):
        answer = Client().get(f"/api/jobs/{job.pk}/{path}", headers=bearer)
        assert "no-store" in answer["Cache-Control"]


def test_static_files_may_be_cached(client: Client) -> None:
    answer = client.get(f"{settings.STATIC_URL}app.css")
    answer.close()

    assert answer.status_code == 200
    assert "no-store" not in answer.headers.get("Cache-Control", "")


def test_a_request_for_an_unknown_host_gets_a_page_in_style(client: Client) -> None:
    answer = client.get("/login/", headers={"host": "other.example"})

    assert answer.status_code == 400
    assert "does not serve the host name" in answer.content.decode()
    assert "app.css" in answer.content.decode()


def test_the_api_says_that_it_does_not_serve_a_host_name(client: Client) -> None:
    answer = client.get("/api/gpus/", headers={"host": "other.example"})

    assert (answer.status_code, answer["Content-Type"]) == (400, errors.CONTENT_TYPE)
    assert "does not serve the host name" in answer.json()["detail"]


def test_a_form_without_its_token_gets_a_page_in_style(alice: User) -> None:
    browser = Client(enforce_csrf_checks=True)
    browser.force_login(alice)
    answer = browser.post("/jobs/new/", {"command": "true"})

    assert answer.status_code == 403
    assert "The form was not accepted" in answer.content.decode()
    assert "app.css" in answer.content.decode()
