"""Each field and parameter of each REST operation takes hostile values without a 5xx."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from monitor.owners import rows
from tests.builders import NOW
from tests.service.test_api_rights import CALLS, Call, names

pytestmark = pytest.mark.django_db

DEEP: Any = "x"
for _ in range(200):
    DEEP = [DEEP]
HOSTILE = {
    "NUL": "a\0b",
    "surrogate": "\ud800",
    "long": "x" * 100_000,
    "first day": "0001-01-01T00:00:00+14:00",
    "last day": "9999-12-31T23:59:59-14:00",
    "huge": 10**400,
    "digits": "9" * 5000,
    "negative": -(2**63) - 1,
    "list": ["\0"] * 3,
    "many": list(range(5000)),
    "object": {"a\0": {"\ud800": [None]}},
    "deep": DEEP,
    "ranges": "0-999999999999,5-1",
}
# Bodies that are no object of fields.
BODIES = (b"", b"null", b"[]", b"1e999", b"NaN", b"\xff\xfe", b"{" * 5000, b"[" * 100_000)
IDS = ("%00", "%F0%9F%92%A9", "9" * 30, "-1")
Sent = tuple[str, bytes]


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    found: dict[str, Any] = Client().get("/api/openapi.json").json()
    return found


def operation(schema: dict[str, Any], call: Call) -> dict[str, Any]:
    """The description of the operation; its path has other names for the parameters."""
    parts = call.path.partition("?")[0].split("/")
    for path, methods in schema["paths"].items():
        pattern = path.split("/")
        same = len(pattern) == len(parts) and all(
            a == b or (a.startswith("{") and (b.startswith("{") or b.isdecimal()))
            for a, b in zip(pattern, parts, strict=True)
        )
        if same and call.method.lower() in methods:
            found: dict[str, Any] = methods[call.method.lower()]
            return found
    raise LookupError(call.path)


def fields(schema: dict[str, Any], described: dict[str, Any]) -> list[str]:
    content = described.get("requestBody", {}).get("content", {})
    part = content.get("application/json", {}).get("schema", {})
    while "$ref" in part or "anyOf" in part:
        part = part.get("anyOf", [part])[0]
        if "$ref" in part:
            part = schema["components"]["schemas"][part["$ref"].rpartition("/")[2]]
    return list(part.get("properties", ()))


def sent(schema: dict[str, Any], call: Call) -> Iterator[Sent]:
    """(path with parameters, body)."""
    known = names()
    path, described = call.path.format(**known), operation(schema, call)
    plain, joint = call.body or {}, "&" if "?" in path else "?"
    if call.method == "GET":
        for parameter in described.get("parameters", ()):
            if parameter["in"] == "query":
                for value in (
                    "a%00b",
                    "%F0%9F%92%A9",
                    "9" * 400,
                    "9999-12-31T23:59:59-14:00",
                    "-1",
                ):
                    yield f"{path}{joint}{parameter['name']}={value}", b""
    else:
        for field in (*fields(schema, described), "not a field"):
            for value in HOSTILE.values():
                yield path, json.dumps({**plain, field: value}).encode()
        for body in BODIES:
            yield path, body
    if "{" in call.path:
        for value in IDS:
            yield call.path.format(**dict.fromkeys(known, value)), json.dumps(plain).encode()


@pytest.mark.parametrize("call", CALLS, ids=lambda c: f"{c.method} {c.path}")
def test_no_hostile_value_ends_in_a_5xx(
    call: Call, schema: dict[str, Any], alice: User, root: User
) -> None:
    client = Client(raise_request_exception=False)
    headers = {"authorization": f"Bearer {rows.create_token(root, NOW)[1]}"}

    broken = []
    for path, body in sent(schema, call):
        answer = client.generic(call.method, path, body, "application/json", headers=headers)
        if answer.status_code >= 500:
            broken.append((path[:200], body[:200], answer.status_code))

    assert broken == []
