"""The OpenAPI description names the error answers, and is as strict as the parser."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client
from ninja import Schema

from gpucoord_site.http.api import api


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    found: dict[str, Any] = Client().get("/api/openapi.json").json()
    return found


def operations(schema: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    return [
        (path, method, found)
        for path, methods in schema["paths"].items()
        for method, found in methods.items()
    ]


def test_each_operation_documents_its_error_answers(schema: dict[str, Any]) -> None:
    for path, method, operation in operations(schema):
        answers = operation["responses"]
        wanted = {"400", "401", "403", "415", "422", "503"}
        wanted |= {"404"} if "{" in path else set()
        wanted |= {"413"} if method == "post" else set()
        assert wanted <= set(answers), (method, path)
        for status in wanted:
            content = answers[status]["content"]["application/problem+json"]["schema"]
            assert content == {"$ref": "#/components/schemas/Error"}


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("post", "/api/jobs/", "429"), ("get", "/api/jobs/{job_id}/log/", "410")],
)
def test_special_answers_are_documented(
    schema: dict[str, Any], method: str, path: str, status: str
) -> None:
    assert status in schema["paths"][path][method]["responses"]


def test_the_success_stands_first(schema: dict[str, Any]) -> None:
    for _, _, operation in operations(schema):
        assert next(iter(operation["responses"])) in ("200", "201", "202", "204")


def test_a_time_of_day_is_no_rfc_3339_time(schema: dict[str, Any]) -> None:
    for name in ("WindowBody", "WindowLine"):
        properties = schema["components"]["schemas"][name]["properties"]
        assert "format" not in properties["start"]
        assert properties["end"]["pattern"]


def test_request_bodies_allow_no_other_fields(schema: dict[str, Any]) -> None:
    for path, method, operation in operations(schema):
        if body := operation.get("requestBody"):
            name = body["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
            found = schema["components"]["schemas"][name]
            assert found["additionalProperties"] is False, (method, path)


def test_a_job_needs_a_command_an_argv_or_a_script(schema: dict[str, Any]) -> None:
    body = schema["components"]["schemas"]["NewJobBody"]

    assert [each["required"] for each in body["oneOf"]] == [["command"], ["argv"], ["script"]]


def test_a_window_needs_a_day(schema: dict[str, Any]) -> None:
    days = schema["components"]["schemas"]["WindowBody"]["properties"]["days"]

    assert (days["minItems"], days["items"]["minimum"], days["items"]["maximum"]) == (1, 0, 6)


@pytest.mark.parametrize(
    ("field", "bounds"),
    [
        ("priority", {"minimum": 1, "maximum": 5}),
        ("gpus", {"minimum": 0, "maximum": 32767}),
        ("gpu_share", {"minimum": 1, "maximum": 100}),
        ("retries", {"minimum": 0, "maximum": 20}),
        ("name", {"maxLength": 120}),
        ("time_limit", {"maxLength": 100}),
        ("env", {"propertyNames": {"pattern": r"^[^\s=\0]+$"}}),
    ],
)
def test_the_fields_of_a_job_have_the_bounds_of_the_parser(
    schema: dict[str, Any], field: str, bounds: dict[str, Any]
) -> None:
    found = schema["components"]["schemas"]["NewJobBody"]["properties"][field]

    assert bounds.items() <= found.items()


def test_no_two_schema_classes_have_the_same_name() -> None:
    """The description has one entry for each name, so one of them would describe both."""
    modules: dict[str, set[str]] = {}
    assert api.get_openapi_schema()["paths"]
    classes = [Schema]
    while classes:
        found = classes.pop()
        classes += found.__subclasses__()
        package = found.__module__.partition(".")[0]
        if package in ("gpucoord_site", "monitor", "scheduler", "reports"):
            modules.setdefault(found.__name__, set()).add(found.__module__)

    assert {name: where for name, where in modules.items() if len(where) > 1} == {}
