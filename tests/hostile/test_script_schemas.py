"""Schemas of scripts and arguments whose check would take hours: the work is bounded by steps."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from scheduler.facts.scripts import Script
from scheduler.models import Job, ScriptDefinition
from scheduler.submission.scripts.policy import definition_mistakes, mistakes
from tests.hostile.cost import measured

pytestmark = pytest.mark.hostile
# CPU seconds; the steps take about half a second on a quiet machine, and a schema's form one.
MOST_S = 4.0


def doubled(keyword: str, depth: int) -> dict[str, Any]:
    """Each level refers to the next one twice."""
    levels: dict[str, Any] = {
        f"l{n}": {keyword: [{"$ref": f"#/$defs/l{n + 1}"}] * 2} for n in range(depth)
    }
    return levels | {f"l{depth}": {"type": "string"}}


def schema_of(argument: Any, definitions: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"properties": {"x": argument}, "$defs": definitions or {}}


def script(schema: dict[str, Any]) -> Script:
    return Script(name="run", argv=("run",), schema=schema, item_argument="")


FIRST = {"$ref": "#/$defs/l0"}
BRANCHING = {
    f"l{n}": {"if": {"$ref": f"#/$defs/l{n + 1}"}, "then": {"$ref": f"#/$defs/l{n + 1}"}}
    for n in range(30)
} | {"l30": {}}
LARGE_SCHEMAS = {
    "18 levels of allOf": schema_of(FIRST, doubled("allOf", 18)),
    "40 levels of allOf": schema_of(FIRST, doubled("allOf", 40)),
    "40 levels of anyOf": schema_of(FIRST, doubled("anyOf", 40)),
    "40 levels of oneOf": schema_of(FIRST, doubled("oneOf", 40)),
    "30 levels of if and then": schema_of(FIRST, BRANCHING),
    "unevaluated properties": {
        **schema_of({}, doubled("allOf", 40)), **FIRST, "unevaluatedProperties": False,
    },
    "another dialect inside": schema_of(
        {"$schema": "https://json-schema.org/draft/2020-12/schema", **FIRST}, doubled("allOf", 40)
    ),
    "thousands of empty parts": schema_of({"allOf": [{}] * 4800}),
}  # fmt: skip


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


TREE = schema_of({"$ref": "#/$defs/n"}, {"n": {"allOf": [{"items": {"$ref": "#/$defs/n"}}] * 2}})
UNIQUE = schema_of(
    {"$ref": "#/$defs/n"},
    {"n": {"allOf": [{"items": {"$ref": "#/$defs/n"}, "uniqueItems": True}] * 2}},
)
LARGE_VALUES = {
    "a deep value and doubled items": (TREE, nested(60)),
    "unique items at each level": (UNIQUE, [[[[[[[[[1] * 5000]]]]]]]]),
    "many parts and a long value": (schema_of({"anyOf": [{"type": "integer"}] * 600}), [1] * 6000),
    "long choices and a long list": (schema_of({"items": {"enum": [*range(3000)]}}), [-5] * 4800),
    "parts for each item": (
        schema_of({"unevaluatedItems": False, "contains": {"anyOf": [{"const": 2}] * 800}}),
        [1] * 4800,
    ),
    "a slow pattern for each item": (
        schema_of({"items": {"pattern": ".*a.*b$"}}), ["a" * 200] * 80,
    ),
    "a slow pattern in another dialect": (
        schema_of(
            {
                "$schema": "https://json-schema.org/draft/2020-12/schema",
                "items": {"pattern": ".*a.*a.*b$"},
            }
        ),
        ["a" * 4000] * 3,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LARGE_SCHEMAS)
def test_a_schema_that_takes_very_long_is_refused_soon(name: str) -> None:
    found, seconds = measured(lambda: definition_mistakes(script(LARGE_SCHEMAS[name])))

    assert [(where, "too many steps" in text) for where, text in found] == [("schema", True)]
    assert seconds < MOST_S


@pytest.mark.parametrize("name", LARGE_VALUES)
def test_arguments_that_take_very_long_are_refused_soon(name: str) -> None:
    schema, value = LARGE_VALUES[name]
    found, seconds = measured(lambda: mistakes(script(schema), {"x": value}))

    assert found
    assert seconds < MOST_S


def test_long_lists_of_everyday_arguments_are_accepted() -> None:
    entry = {
        "properties": {"a": {"type": "integer"}, "b": {"type": "string", "pattern": "^a"}},
        "required": ["a"],
    }
    schema = schema_of({"type": "array", "items": entry})

    assert definition_mistakes(script(schema)) == []
    assert mistakes(script(schema), {"x": [{"a": 1, "b": "ab"}] * 900}) == []


def post(person: User, path: str, body: dict[str, Any]) -> Any:
    client = Client()
    client.force_login(person)
    return client.post(path, json.dumps(body), content_type="application/json")


def test_such_a_schema_is_answered_by_422_and_not_stored(root: User) -> None:
    new = {"name": "slow", "argv": ["true"], "schema": LARGE_SCHEMAS["40 levels of allOf"]}
    answer, seconds = measured(lambda: post(root, "/api/scripts/", new))

    assert answer.status_code == 422
    assert [error["field"] for error in answer.json()["errors"]] == ["schema"]
    assert not ScriptDefinition.objects.filter(name="slow").exists()
    assert seconds < MOST_S


def test_a_schema_that_was_stored_before_is_bounded_at_use_too(alice: User) -> None:
    schema = LARGE_SCHEMAS["40 levels of allOf"]
    ScriptDefinition.objects.create(
        name="slow", argv=["true"], schema=schema, gpu="no", task_type="process", item_argument="x"
    )
    request = {"script": "slow", "script_args": {"x": "a"}}
    job, seconds = measured(lambda: post(alice, "/api/jobs/", request))
    items = {"script": "slow", "items": ["a"] * 1000}
    batch, batch_seconds = measured(lambda: post(alice, "/api/jobs/batch/", items))

    assert (job.status_code, batch.status_code) == (422, 422)
    assert not Job.objects.exists()
    assert seconds < MOST_S
    assert batch_seconds < 2 * MOST_S
