from __future__ import annotations

from collections.abc import Callable

import pytest
from django.contrib.auth.models import User
from django.test import Client

pytestmark = pytest.mark.django_db


def test_the_page_names_every_operation(alice: User, as_user: Callable[[User], Client]) -> None:
    browser = as_user(alice)
    html = browser.get("/api/docs/").content.decode()

    schema = browser.get("/api/openapi.json").json()
    assert [path for path in schema["paths"] if path not in html] == []
    assert len(schema["paths"]) >= 7


def test_it_loads_nothing_from_elsewhere(alice: User, as_user: Callable[[User], Client]) -> None:
    html = as_user(alice).get("/api/docs/").content.decode()

    assert 'src="http' not in html
    assert "<style" not in html


def test_the_description_needs_no_login(client: Client) -> None:
    schema = client.get("/api/openapi.json").json()

    assert schema["info"]["title"] == "gpucoord"
    assert "gpu_memory" in schema["components"]["schemas"]["NewJobBody"]["properties"]


def test_the_page_explains_the_error_answers(
    alice: User, as_user: Callable[[User], Client]
) -> None:
    html = as_user(alice).get("/api/docs/").content.decode()

    assert "The body is too large." in html
    assert "try again after `Retry-After` seconds" in html
