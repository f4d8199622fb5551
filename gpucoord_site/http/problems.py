"""Error answers of REST as problem details (RFC 9457)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

from django.http import HttpResponse

CONTENT_TYPE = "application/problem+json"


def body(status: int, detail: str, errors: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
    """`type` is about:blank, so `title` is the phrase of the status."""
    title = HTTPStatus(status).phrase
    problem = {"type": "about:blank", "title": title, "status": status, "detail": detail}
    return problem | ({"errors": list(errors)} if errors else {})


def response(status: int, detail: str, errors: Sequence[dict[str, Any]] = ()) -> HttpResponse:
    text = json.dumps(body(status, detail, errors))
    return HttpResponse(text, status=status, content_type=CONTENT_TYPE)


def by_field(errors: Sequence[tuple[str, str, int | None]], status: int = 422) -> HttpResponse:
    """The answer to refused fields: (field, sentence, index of the job in a batch or None).

    422: fields are wrong. 429: the same request may succeed later.
    """
    if status == 429:
        detail = "The request may succeed later; Retry-After has the seconds."
    else:
        number = "One field" if len(errors) == 1 else "Some fields"
        detail = f"{number} must be changed."
    return response(status, detail, [_error(*error) for error in errors])


def _error(field: str, text: str, index: int | None) -> dict[str, Any]:
    where = {} if index is None else {"index": index}
    return where | {"field": field, "message": text}
