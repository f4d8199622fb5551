"""Each page and form takes hostile paths, parameters and fields without a 5xx."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.http import QueryDict
from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver

from tests import jobs_made

pytestmark = [pytest.mark.slow, pytest.mark.django_db, pytest.mark.usefixtures("data")]

VALUES = (
    "a\0b", "9" * 400, "-9223372036854775809", "0001-01-01T00:00", "9999-12-31T23:59:59Z",
    "1e999", "[[[", "(*", "x" * 20_000, "2026-13-45", "١٢٣", "../../etc/passwd", "%00",
)  # fmt: skip
PATHS = ("9" * 30, "-1", "%00", "%F0%9F%92%A9", "x" * 3000, "..%2f")
# Not pages: REST has tests of its own, and a logged-out client would reach nothing more.
OTHERS = ("api/", "static", "healthz", "metrics", "logout")
ADMIN_NAMES = frozenset({"q", "o", "p", "all", "e", "action", "_selected_action"})


def routes(patterns: list[Any], prefix: str = "") -> Iterator[tuple[str, URLPattern]]:
    for pattern in patterns:
        route = prefix + str(pattern.pattern).strip("^$")
        if isinstance(pattern, URLResolver):
            yield from routes(pattern.url_patterns, route)
        elif not route.startswith(OTHERS):
            yield route, pattern


PAGES = {
    route: pattern
    for route, pattern in routes(get_resolver().url_patterns)
    # Of the admin, the lists with their filters: its forms are Django's.
    if not route.startswith("admin") or (route.count("/") == 3 and "<" not in route)
}


def with_argument(route: str, value: str) -> str:
    return "/" + re.sub(r"<[^>]*>", lambda _: value, route)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The names of fields and parameters that pages have asked for."""
    names: set[str] = set()

    def noted(method: str) -> Callable[..., Any]:
        plain = getattr(QueryDict, method)

        def note(fields: QueryDict, name: str, *more: Any) -> Any:
            names.add(name)
            return plain(fields, name, *more)

        return note

    for method in ("__getitem__", "__contains__", "get", "getlist"):
        monkeypatch.setattr(QueryDict, method, noted(method))
    return names


@pytest.mark.parametrize("method", ["get", "post"])
@pytest.mark.parametrize("route", sorted(PAGES))
def test_a_page_takes_hostile_values(route: str, method: str, alice: User, asked: set[str]) -> None:
    chief = User.objects.create_superuser("chief", password="a-long-enough-one")
    client = Client(raise_request_exception=False)
    client.force_login(chief)
    page = with_argument(route, str(jobs_made.waiting(alice).pk))

    def fails(path: str, fields: dict[str, str]) -> bool:
        return bool(getattr(client, method)(path, fields).status_code >= 500)

    asked.clear()
    broken = [path[:100] for path in hostile_paths(route) if fails(path, {})]
    assert broken == []
    assert not fails(page, {})
    sent: set[str] = set()
    # An answer to some fields may ask for others. Those of the admin are Django's.
    while new := sorted(ADMIN_NAMES - sent if route.startswith("admin") else asked - sent):
        sent.update(new)
        tries = [dict.fromkeys(sorted(sent), value) for value in VALUES[::4]]
        if not route.startswith("admin"):
            tries += [{name: VALUES[i % len(VALUES)]} for i, name in enumerate(new)]
        assert [fields for fields in tries if fails(page, fields)] == []


def hostile_paths(route: str) -> list[str]:
    return [with_argument(route, value) for value in PATHS] if "<" in route else []


def test_pages_and_forms_of_all_apps_are_among_them() -> None:
    assert len(PAGES) > 60
    assert {"jobs/new/", "windows/ask/", "reports/", "login/"} <= set(PAGES)
