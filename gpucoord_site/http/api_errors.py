"""Every error of the API is a problem (RFC 9457): `detail` is a sentence, `errors` are by field."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from django.core.exceptions import RequestDataTooBig
from django.db import InterfaceError, OperationalError
from django.http import Http404, HttpRequest, HttpResponse
from django.utils import timezone
from django.utils.deprecation import MiddlewareMixin

from gpucoord_site.http import errors as problems
from gpucoord_site.http.clients import TooManyRequests
from gpucoord_site.http.errors import PREFIX, TOO_LARGE, UNAVAILABLE, unavailable
from monitor.facts import input_rules
from monitor.pages.requests import SENTENCE, InvalidInput
from scheduler.facts import job_fields
from scheduler.queue.planner.admission import QUEUE
from scheduler.submission.intake.actions import KEY_HEADER
from scheduler.submission.intake.policy import UnableToSubmit
from scheduler.submission.intake.steps import MOST_REFUSALS, further

# The middleware is loaded before the web process serves, and ninja with REST after that.
if TYPE_CHECKING:
    from ninja import NinjaAPI
    from ninja.errors import HttpError, ValidationError

logger = logging.getLogger(__name__)

JSON_TYPES = ("application/json", problems.CONTENT_TYPE)
SENTENCES = {
    400: "The request can't be read. The body must be JSON in UTF-8.",
    403: "You may not do this.",
    404: "There is nothing here. Addresses end with a slash; /api/docs/ lists them.",
    405: "This address doesn't know that method; the Allow header names those that it knows.",
    413: TOO_LARGE,
    503: UNAVAILABLE,
    500: "gpucoord failed; its log says why.",
}
OTHER_WORDS = {
    "limit": "Write a whole number.",
    "days": "Write the days as a list of numbers: 0 is Monday, 6 is Sunday.",
    "start": "Write a time of day without an offset, such as 20:00; `zone` names its time zone.",
    "end": "Write a time of day without an offset, such as 22:00; `zone` names its time zone.",
    "zone": "Write a time zone such as Europe/Berlin or UTC.",
    "share_pct": "Write a percentage from 1 to 100.",
    "mode": "Write automatic, cooperative or defensive.",
    KEY_HEADER: "Write a key of 1 to 255 printable ASCII characters without spaces.",
    "hours": "Write a number of hours.",
    "jobs": "Write a list of objects, each like the body of POST /api/jobs/.",
    "new": 'Write an object, such as {"command": "python train.py"}.',
    "offset": "Write a whole number, 0 or more.",
    "cursor": "Take the cursor from `next` of the page before.",
    "array": "Write the number of an array.",
}
# The body of these requests is a job.
JOBS = (f"{PREFIX}jobs/", f"{PREFIX}jobs/what-if/")
# Fields there have names of fields of a job, and another meaning.
WITHOUT_JOB_FIELDS = (f"{PREFIX}models/", f"{PREFIX}prompts/")
# By the beginning of a kind of pydantic's errors.
OF_KIND = {
    "string_type": "Write a text.",
    "list_type": "Write a list.",
    "int_": "Write a whole number.",
    "float_": "Write a number.",
    "finite_number": "Write a number.",
    "bool_": "Write true or false.",
    "dict_type": "Write an object.",
    "model_": "Write an object.",
}
BOUNDS = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than"}
LENGTHS = {"max_length": "at most", "min_length": "at least"}
# After a request that waited for other long work in vain.
RETRY_LONG_WORK_S = 60


class ApiErrors(MiddlewareMixin):
    """Turns error pages below /api/ into JSON, also those that no operation made."""

    def process_response(self, request: HttpRequest, response: Any) -> Any:
        if not request.path.startswith(PREFIX) or response.status_code < 400:
            return response
        if response.headers.get("Content-Type", "").startswith(JSON_TYPES):
            return response
        sentence = SENTENCES.get(response.status_code, response.reason_phrase)
        answer = problems.problem_response(response.status_code, sentence)
        if "Allow" in response.headers:
            answer["Allow"] = ", ".join(sorted(response.headers["Allow"].split(", ")))
        return answer


def handle_errors(api: NinjaAPI) -> None:
    """Register the error answers of `api`."""
    from ninja.errors import HttpError, ValidationError

    answers: dict[type[Exception], Callable[[HttpRequest, Any], HttpResponse]] = {
        HttpError: _http_error,
        TooManyRequests: _too_many,
        Http404: _not_found,
        ValidationError: _invalid,
        UnableToSubmit: _refused,
        InvalidInput: _invalid_input,
        RequestDataTooBig: _too_large,
        OperationalError: unavailable,
        InterfaceError: unavailable,
        Exception: _failed,
    }
    for kind, answer in answers.items():
        api.add_exception_handler(kind, answer)


def _http_error(request: HttpRequest, error: HttpError) -> HttpResponse:
    detail = SENTENCES[400] if error.status_code == 400 else error.message
    if error.status_code == 403 and getattr(request, "lacks_operate", False):
        detail += " This token lacks the scope `operate`."
    response = problems.problem_response(error.status_code, detail)
    if error.status_code == 401:
        response["WWW-Authenticate"] = 'Bearer realm="gpucoord"'
    if error.status_code == 429:
        response["Retry-After"] = str(RETRY_LONG_WORK_S)
    return response


def _too_many(_request: HttpRequest, error: TooManyRequests) -> HttpResponse:
    response = problems.problem_response(429, str(error))
    response["Retry-After"] = str(error.seconds)
    return response


def _not_found(_request: HttpRequest, error: Http404) -> HttpResponse:
    return problems.problem_response(404, str(error) or SENTENCES[404])


def _refused(_request: HttpRequest, error: UnableToSubmit) -> HttpResponse:
    errors = [(refusal.field, refusal.text, refusal.index) for refusal in error.refusals]
    if any(refusal.field != QUEUE for refusal in error.refusals):
        return problems.by_field(errors)
    # The jobs are valid, but the queue is full now.
    answer = problems.by_field(errors, status=429)
    answer["Retry-After"] = "60"
    return answer


def _invalid_input(_request: HttpRequest, error: InvalidInput) -> HttpResponse:
    return problems.by_field([(field, text, None) for field, text in error.errors])


def _too_large(_request: HttpRequest, _error: Exception) -> HttpResponse:
    return problems.problem_response(413, SENTENCES[413])


def _invalid(request: HttpRequest, error: ValidationError) -> HttpResponse:
    sentences: dict[tuple[str, int | None], str] = {}
    for problem in error.errors:
        field, index = _place(problem["loc"])
        context = problem.get("ctx") or {}
        field = context.get("field") or field
        sentence = _sentence(field, problem["type"], context, request.path)
        sentences.setdefault((field, index), sentence)
        if len(sentences) >= MOST_REFUSALS:
            break
    errors = [(field, text, index) for (field, index), text in sentences.items()]
    if request.method == "POST" and request.path in JOBS:
        errors += _of_other_fields(request, {field for field, _, _ in errors})
    return problems.by_field(errors[:MOST_REFUSALS])


def _of_other_fields(request: HttpRequest, wrong: set[str]) -> list[tuple[str, str, None]]:
    """Mistakes in the fields of a job that have the right JSON types."""
    try:
        body = input_rules.parse_json(request.body)
    except ValueError:
        return []
    if not isinstance(body, dict):
        return []
    refusals = further(body, wrong, timezone.now())
    return [(refusal.field, refusal.text, None) for refusal in refusals]


def _place(where: Sequence[str | int]) -> tuple[str, int | None]:
    """The field, and of a batch which job: ("body", "batch", "jobs", 3, "gpus", ...).

    ("body", "new", "gpus", ...) for a body, ("query", "limit") for the address.
    """
    if where[0] != "body" or len(where) <= 2:
        return str(where[-1]), None
    if where[1:3] == ("batch", "jobs") and len(where) > 3:
        return str(where[4] if len(where) > 4 else where[2]), int(where[3])
    return str(where[2]), None


def _sentence(field: str, kind: str, context: dict[str, Any], path: str) -> str:
    if kind == SENTENCE:
        return str(context["text"])
    if kind == "missing":
        return "This is needed."
    bounds = [f"It must be {BOUNDS[name]} {context[name]:g}." for name in BOUNDS.keys() & context]
    unit = "entries" if kind.startswith("too_") else "characters"
    lengths = [
        f"It must have {LENGTHS[name]} {context[name]} {unit}." for name in LENGTHS.keys() & context
    ]
    if lengths and kind in ("string_too_long", "too_long"):
        return "".join(lengths)
    job_field = None if path.startswith(WITHOUT_JOB_FIELDS) else job_fields.BY_NAME.get(field)
    specific = (
        (job_field.sentence if job_field else "")
        or "".join(bounds)
        or OTHER_WORDS.get(field)
        or "".join(lengths)
    )
    if not specific and kind in ("enum", "literal_error"):
        return f"Write one of {context['expected']}."
    return specific or next(
        (text for begin, text in OF_KIND.items() if kind.startswith(begin)), "This can't be used."
    )


def _failed(request: HttpRequest, error: Exception) -> HttpResponse:
    about = {"kind": "REQUEST_FAILED", "method": request.method, "path": request.path}
    logger.error("%s %s failed", request.method, request.path, exc_info=error, extra=about)
    return problems.problem_response(500, SENTENCES[500])
