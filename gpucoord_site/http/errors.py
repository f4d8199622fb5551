"""Error pages that need neither a login nor the database.

Requests are answered with 503 and Retry-After while the database does not answer, not with 500.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

from django.core.exceptions import DisallowedHost, RequestDataTooBig
from django.db import InterfaceError, OperationalError
from django.http import HttpRequest, HttpResponse
from django.template.loader import render_to_string
from django.utils.deprecation import MiddlewareMixin
from django.views import defaults

from monitor.pages.requests import RefusedText
from monitor.runtime.rows import database
from monitor.runtime.rows.item_isolation import FaultLog

# Error answers of REST as problem details (RFC 9457).


CONTENT_TYPE = "application/problem+json"


def body(status: int, detail: str, errors: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
    """`type` is about:blank, so `title` is the phrase of the status."""
    title = HTTPStatus(status).phrase
    problem = {"type": "about:blank", "title": title, "status": status, "detail": detail}
    return problem | ({"errors": list(errors)} if errors else {})


def problem_response(
    status: int, detail: str, errors: Sequence[dict[str, Any]] = ()
) -> HttpResponse:
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
    return problem_response(status, detail, [_error(*error) for error in errors])


def _error(field: str, text: str, index: int | None) -> dict[str, Any]:
    where = {} if index is None else {"index": index}
    return where | {"field": field, "message": text}


# Django's own limit (DATA_UPLOAD_MAX_MEMORY_SIZE).
LARGEST_BODY = 2_621_440
TOO_LARGE = f"The body is too large; at most {LARGEST_BODY / 1024**2:g} MiB are accepted."


logger = logging.getLogger(__name__)
faults = FaultLog(logger)

PREFIX = "/api/"
RETRY_AFTER_S = 10
UNAVAILABLE = (
    "The database does not answer now. Running jobs continue; new jobs start when it answers again."
    f" Try again in {RETRY_AFTER_S} seconds."
)
FULL = (
    "The disk of the database is full, so nothing can be stored. Running jobs continue, and no job"
    f" starts. Ask an operator to free space there, and try again in {RETRY_AFTER_S} seconds."
)
TITLE = "The database is not available"
# /healthz reports the problem itself, so it is served.
EXEMPT = "/healthz"


class DatabaseFileGuard(MiddlewareMixin):
    """Answers 503 to every request once the SQLite file is gone."""

    def process_request(self, request: HttpRequest) -> HttpResponse | None:
        sentence = database.file_problem()
        if sentence is None or request.path == EXEMPT:
            return None
        return _answer(request, sentence)


def is_unavailable(error: BaseException | None) -> bool:
    """Unreachable, restarting, locked for too long, or its file is gone."""
    return isinstance(error, OperationalError | InterfaceError)


def unavailable(request: HttpRequest, error: BaseException) -> HttpResponse:
    """503 with a sentence. The error is logged once a minute, not once per request."""
    text = f"Requests are answered with 503: the database does not answer ({error})"
    faults.log(error, text, {"kind": "DATABASE_UNAVAILABLE"})
    sentence = FULL if database.is_full(error) else UNAVAILABLE
    return _answer(request, database.file_problem() or sentence)


def _answer(request: HttpRequest, sentence: str) -> HttpResponse:
    if request.path.startswith(PREFIX):
        response = problem_response(503, sentence)
    else:
        context = {"status": 503, "title": TITLE, "sentence": sentence}
        response = HttpResponse(render_to_string("error.html", context), status=503)
    response["Retry-After"] = str(RETRY_AFTER_S)
    response["Cache-Control"] = "no-store"
    # Django would log each request with a traceback.
    response._has_been_logged = True  # type: ignore[attr-defined]
    return response


OUT_OF_RANGE = "A time or a number in the request is outside the possible range."
NO_YEAR = re.compile(r"year -?[0-9]+ is out of range")
UNKNOWN_HOST = (
    "This server does not serve the host name of the request. Use its usual address, or ask an"
    " operator to add the name to allowed_hosts."
)
UNREADABLE = "The server can't read the request. Go back, reload the page and try again."
FORM_REFUSED = (
    "The token of the form is missing or out of date. This happens after a new login"
    " in another tab, and where the browser blocks cookies. Go back, reload the page and send the"
    " form again."
)
TITLES = {
    400: "The request is not valid",
    403: "The form was not accepted",
    413: "The request is too large",
    422: "The request has a value that can't be used",
}


def refusal(request: HttpRequest, status: int, sentence: str) -> HttpResponse:
    """A page with one sentence about what to change."""
    context = {"status": status, "title": TITLES[status], "sentence": sentence}
    return HttpResponse(render_to_string("error.html", context), status=status)


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:
    """400, but 413 for a body over the limit and 422 for a refused text."""
    if isinstance(exception, RequestDataTooBig):
        return refusal(request, 413, TOO_LARGE)
    if isinstance(exception, RefusedText):
        return refusal(request, 422, str(exception))
    if not isinstance(exception, DisallowedHost):
        return refusal(request, 400, UNREADABLE)
    if request.path.startswith(PREFIX):
        return problem_response(400, UNKNOWN_HOST)
    return refusal(request, 400, UNKNOWN_HOST)


def csrf_failure(request: HttpRequest, reason: str = "") -> HttpResponse:
    """403 for a form without a valid CSRF token. Django has logged the reason."""
    return refusal(request, 403, FORM_REFUSED)


def server_error(request: HttpRequest) -> HttpResponse:
    """Django's answer 500, but 503 while the database is away.

    422 for times outside the calendar: the admin converts those of its filters and forms to UTC.
    """
    error = sys.exc_info()[1]
    if error is not None and is_unavailable(error):
        return unavailable(request, error)
    if _is_out_of_range(error):
        about = {"kind": "REQUEST_REFUSED", "method": request.method, "path": request.path}
        logger.warning("A value is out of range: %s", error, exc_info=error, extra=about)
        return refusal(request, 422, OUT_OF_RANGE)
    return defaults.server_error(request)


def _is_out_of_range(error: BaseException | None) -> bool:
    """OverflowError of a time zone, or datetime's error about the year 10000."""
    no_year = isinstance(error, ValueError) and NO_YEAR.fullmatch(str(error))
    return isinstance(error, OverflowError) or bool(no_year)
