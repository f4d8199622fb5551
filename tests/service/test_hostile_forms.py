"""Each page and form takes hostile paths, parameters and fields without a 5xx."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.auth.models import User
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
ADMIN_NAMES = ("q", "o", "p", "all", "e", "action", "_selected_action")


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


def names(route: str, pattern: URLPattern) -> list[str]:
    """The names that the view's module may read; too many do no harm."""
    if route.startswith("admin"):
        return list(ADMIN_NAMES)
    module = sys.modules[inspect.unwrap(pattern.callback).__module__]
    return sorted(set(re.findall(r'"([a-z_]{1,30})"', inspect.getsource(module))))


def with_argument(route: str, value: str) -> str:
    return "/" + re.sub(r"<[^>]*>", lambda _: value, route)


def sent(route: str, pattern: URLPattern, job: int) -> Iterator[tuple[str, dict[str, str]]]:
    path, known = with_argument(route, str(job)), names(route, pattern)
    if "<" in route:
        yield from ((with_argument(route, value), {}) for value in PATHS)
    yield from ((path, dict.fromkeys(known, value)) for value in VALUES[::4])
    if not route.startswith("admin"):
        yield from ((path, {n: VALUES[i % len(VALUES)]}) for i, n in enumerate(known))


@pytest.mark.parametrize("route", sorted(PAGES))
def test_a_page_takes_hostile_values(route: str, alice: User) -> None:
    chief = User.objects.create_superuser("chief", password="a-long-enough-one")
    client = Client(raise_request_exception=False)
    client.force_login(chief)
    job = jobs_made.waiting(alice).pk

    broken = [
        (method, path[:100], {name: value[:30] for name, value in fields.items()})
        for path, fields in sent(route, PAGES[route], job)
        for method in ("get", "post")
        if getattr(client, method)(path, fields).status_code >= 500
    ]

    assert broken == []


def test_pages_and_forms_of_all_apps_are_among_them() -> None:
    assert len(PAGES) > 60
    assert {"jobs/new/", "windows/ask/", "reports/", "login/"} <= set(PAGES)
