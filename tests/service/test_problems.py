"""Each error answer below /api/ is a problem as RFC 9457 defines it."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from monitor.owners import rows

JSON = "application/json"


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("method", "path", "body", "status", "title"),
    [
        ("get", "/api/jobs/999/", "", 404, "Not Found"),
        ("get", "/api/nothing/", "", 404, "Not Found"),
        ("delete", "/api/jobs/", "", 405, "Method Not Allowed"),
        ("post", "/api/jobs/", "{", 400, "Bad Request"),
        ("post", "/api/jobs/", "{}", 422, "Unprocessable Entity"),
        ("get", "/api/jobs/?owner=%00", "", 422, "Unprocessable Entity"),
    ],
)
def test_it_has_the_members_and_the_media_type_of_a_problem(
    alice: User, method: str, path: str, body: str, status: int, title: str
) -> None:
    _, token = rows.create_token(alice, timezone.now())
    headers = {"authorization": f"Bearer {token}"}
    arguments: tuple[Any, ...] = (path, body, JSON) if method == "post" else (path,)

    answer = getattr(Client(), method)(*arguments, headers=headers)

    assert (answer.status_code, answer["Content-Type"]) == (status, "application/problem+json")
    problem = answer.json()
    assert (problem["type"], problem["status"]) == ("about:blank", status)
    # Python 3.13 follows RFC 9110, which renamed the phrase of 422.
    assert problem["title"] in {title, title.replace("Entity", "Content")}
    assert problem["detail"]


@pytest.mark.django_db
def test_without_a_login_too() -> None:
    answer = Client().get("/api/jobs/")

    assert (answer.status_code, answer["Content-Type"]) == (401, "application/problem+json")
    assert answer.json()["title"] == "Unauthorized"
