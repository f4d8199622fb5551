"""The pages below /docs/: chapters of the documentation, their search, and the command line."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, cast

from django.conf import settings
from django.contrib.auth.models import User
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.html import linebreaks
from django.utils.safestring import SafeString, mark_safe
from django.views.decorators.http import require_safe
from msgspec import Struct

from gpucoord_site import welcome
from gpucoord_site.cli.main import COMMANDS
from gpucoord_site.documentation import library

LONGEST_SEARCH = 200


@require_safe
def index(request: HttpRequest) -> HttpResponse:
    """The index, or the sections that have the words of `q`."""
    text = request.GET.get("q", "")[:LONGEST_SEARCH].strip()
    if not text:
        return chapter(request, library.INDEX)
    context = {"q": text, "hits": library.search(text), "most": library.MOST_HITS}
    return render(request, "docs/search.html", context | _common())


@require_safe
def chapter(request: HttpRequest, name: str) -> HttpResponse:
    try:
        shown = library.chapter(name)
    except library.NoChapter:
        raise Http404(f"There is no chapter {name}.") from None
    before, after = library.neighbours(name)
    context = {
        "chapter_shown": shown,
        "before": before,
        "after": after,
    }
    return render(request, "docs/chapter.html", context | _common())


@require_safe
def command_line(request: HttpRequest) -> HttpResponse:
    """The commands, with the address of this server and the accounts of this user."""
    config = settings.CONFIG
    context = {
        "address": config.public_url or request.build_absolute_uri("/").rstrip("/"),
        "node": config.node,
        "account": welcome.terminal_account(cast("User", request.user)),
        "commands": [(name, text) for name, (text, _) in COMMANDS.items()],
    }
    return render(request, "docs/command_line.html", context | _common())


def _common() -> dict[str, object]:
    groups: dict[str, list[library.Entry]] = {}
    for entry in library.index():
        groups.setdefault(entry.group, []).append(entry)
    return {"groups": list(groups.items())}


# The page of the REST API, generated from its OpenAPI description.


METHODS = ("get", "post", "put", "patch", "delete")


class Field(Struct, frozen=True):
    """A parameter, or a field of a body."""

    name: str
    kind: str
    text: str
    needed: bool
    default: str


class Operation(Struct, frozen=True):
    anchor: str
    tag: str
    method: str
    path: str
    summary: str
    text: str
    parameters: list[Field]
    body: list[Field]
    answer: list[Field]
    status: str
    example: str

    @property
    def html(self) -> SafeString:
        """The text with `names` as code."""
        paragraphs = linebreaks(self.text, autoescape=True)
        return mark_safe(re.sub(r"`([^`]+)`", r"<code>\1</code>", paragraphs))  # noqa: S308 - escaped


@require_safe
def docs(request: HttpRequest) -> HttpResponse:
    # Loaded after the start, as in `urls.py`.
    from gpucoord_site.http.api import DESCRIPTIONS, api

    schema = api.get_openapi_schema()
    context = {
        "operations": list(_operations(schema)),
        "errors": DESCRIPTIONS.items(),
        "base": f"{request.scheme}://{request.get_host()}",
    }
    return render(request, "api_docs.html", context)


def _operations(schema: Mapping[str, Any]) -> Iterator[Operation]:
    for path, methods in schema["paths"].items():
        for method in (m for m in METHODS if m in methods):
            yield _operation(schema, path, method, methods[method])


def _operation(
    schema: Mapping[str, Any], path: str, method: str, spec: Mapping[str, Any]
) -> Operation:
    body = _json(spec.get("requestBody", {}))
    status, answer = next(iter(spec["responses"].items()))
    example = _resolve(schema, body).get("examples", [None])[0]
    return Operation(
        anchor=spec["operationId"],
        tag=spec.get("tags", [""])[0],
        method=method.upper(),
        path=path,
        summary=spec["summary"],
        text=spec.get("description", ""),
        parameters=[_parameter(schema, p) for p in spec.get("parameters", ())],
        body=_fields(schema, body),
        answer=_fields(schema, _json(answer)),
        status=str(status),
        example=json.dumps(example) if example else "",
    )


def _json(part: Mapping[str, Any]) -> Mapping[str, Any]:
    spec: Mapping[str, Any] = part.get("content", {}).get("application/json", {}).get("schema", {})
    return spec


def _parameter(schema: Mapping[str, Any], spec: Mapping[str, Any]) -> Field:
    return _field(schema, spec["name"], spec["schema"], bool(spec.get("required")))


def _fields(schema: Mapping[str, Any], body: Mapping[str, Any]) -> list[Field]:
    resolved = _resolve(schema, body)
    needed = resolved.get("required", ())
    properties = resolved.get("properties", {}).items()
    return [_field(schema, name, spec, name in needed) for name, spec in properties]


def _field(schema: Mapping[str, Any], name: str, spec: Mapping[str, Any], needed: bool) -> Field:
    text = spec.get("description") or _resolve(schema, spec).get("description", "")
    default = spec.get("default")
    return Field(
        name, _kind(schema, spec), text, needed, "" if default is None else json.dumps(default)
    )


def _kind(schema: Mapping[str, Any], spec: Mapping[str, Any]) -> str:
    """ "list of text", "whole number or null" ..."""
    if "anyOf" in spec:
        kinds = [_kind(schema, each) for each in spec["anyOf"] if each.get("type") != "null"]
        return " or ".join(dict.fromkeys(kinds))
    if "$ref" in spec:
        return (
            spec["$ref"].rpartition("/")[2].removesuffix("Body")
            if not _resolve(schema, spec).get("enum")
            else _kind(schema, _resolve(schema, spec))
        )
    if "enum" in spec:
        return " | ".join(map(str, spec["enum"]))
    if spec.get("type") == "array":
        return f"list of {_kind(schema, spec.get('items', {}))}"
    words = {"string": "text", "integer": "number", "boolean": "true or false"}
    kind = str(spec.get("type", "anything"))
    return "time" if spec.get("format") == "date-time" else words.get(kind, kind)


def _resolve(schema: Mapping[str, Any], spec: Mapping[str, Any]) -> Mapping[str, Any]:
    """The target of a $ref."""
    if "$ref" not in spec:
        return spec
    resolved: Mapping[str, Any] = schema["components"]["schemas"][spec["$ref"].rpartition("/")[2]]
    return resolved
