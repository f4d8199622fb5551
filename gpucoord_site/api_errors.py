"""Every error of the API is JSON: {"detail": a sentence} and for 422 `errors` by field."""

from __future__ import annotations

import logging
from collections.abc import Callable
from difflib import get_close_matches
from typing import Any

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.http.response import HttpResponseBase
from ninja import NinjaAPI
from ninja.errors import HttpError, ValidationError

from scheduler.api_schemas import NewJobBody
from scheduler.fields import WORDS
from scheduler.policy.hard_limits import QUEUE
from scheduler.submitting import UnableToSubmit

logger = logging.getLogger(__name__)

PREFIX = "/api/"
SENTENCES = {
    400: "The request can't be read; is the body JSON?",
    403: "You may not do this.",
    404: "There is nothing here. Addresses end with a slash; /api/docs/ lists them.",
    405: "This address doesn't know that method; the Allow header names those that it knows.",
    413: "The body is too large.",
    500: "gpucoord failed; its log says why.",
}
OTHER_WORDS = {
    "limit": "Write a whole number.",
    "since": "Write a time with its zone, such as 2026-03-02T12:00:00Z.",
    "offset": "Write a whole number, 0 or more.",
}
BOUNDS = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than"}


class ApiErrors:
    """Turns error pages below /api/ into JSON, also those that no operation made."""

    async_capable = True
    sync_capable = True

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        self.get_response = get_response
        self._is_async = iscoroutinefunction(get_response)
        if self._is_async:
            markcoroutinefunction(self)

    def __call__(self, request: HttpRequest) -> Any:
        if self._is_async:
            return self._acall(request)
        return _as_json(request, self.get_response(request))

    async def _acall(self, request: HttpRequest) -> HttpResponseBase:
        return _as_json(request, await self.get_response(request))


def _as_json(request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
    if not request.path.startswith(PREFIX) or response.status_code < 400:
        return response
    if response.headers.get("Content-Type", "").startswith("application/json"):
        return response
    sentence = SENTENCES.get(response.status_code, response.reason_phrase)
    made = JsonResponse({"detail": sentence}, status=response.status_code)
    if "Allow" in response.headers:
        made["Allow"] = ", ".join(sorted(response.headers["Allow"].split(", ")))
    return made


def handle_errors(api: NinjaAPI) -> None:
    """Teach `api` how to say what went wrong."""
    answers: dict[type[Exception], Callable[[HttpRequest, Any], HttpResponse]] = {
        HttpError: _http_error,
        Http404: _not_found,
        ValidationError: _invalid,
        UnableToSubmit: _refused,
        Exception: _failed,
    }
    for kind, answer in answers.items():
        api.add_exception_handler(kind, answer)


def _http_error(_request: HttpRequest, error: HttpError) -> HttpResponse:
    response = JsonResponse({"detail": error.message}, status=error.status_code)
    if error.status_code == 400:
        response = JsonResponse({"detail": SENTENCES[400]}, status=400)
    if error.status_code == 401:
        response["WWW-Authenticate"] = 'Bearer realm="gpucoord"'
    return response


def _not_found(_request: HttpRequest, error: Http404) -> HttpResponse:
    return JsonResponse({"detail": str(error) or SENTENCES[404]}, status=404)


def _refused(_request: HttpRequest, error: UnableToSubmit) -> HttpResponse:
    answer = _fields([(refusal.field, refusal.text) for refusal in error.refusals])
    if any(refusal.field == QUEUE for refusal in error.refusals):
        # Not the job is wrong, only the time.
        answer.status_code = 429
        answer["Retry-After"] = "60"
    return answer


def _invalid(_request: HttpRequest, error: ValidationError) -> HttpResponse:
    found: dict[str, str] = {}
    for problem in error.errors:
        # ("body", "new", "gpus", ...) for a body, ("query", "limit") for the address.
        where = [str(part) for part in problem["loc"]]
        field = where[2] if where[0] == "body" and len(where) > 2 else where[-1]
        found.setdefault(field, _sentence(field, problem["type"], problem.get("ctx") or {}))
    return _fields(list(found.items()))


def _sentence(field: str, kind: str, context: dict[str, Any]) -> str:
    if kind == "extra_forbidden":
        close = get_close_matches(field, NewJobBody.model_fields, 1)
        return f"There is no such field.{f' Did you mean {close[0]}?' if close else ''}"
    if kind == "missing":
        return "This is needed."
    bounds = [f"It must be {BOUNDS[name]} {context[name]:g}." for name in BOUNDS.keys() & context]
    return WORDS.get(field) or "".join(bounds) or OTHER_WORDS.get(field) or "This can't be used."


def _fields(errors: list[tuple[str, str]]) -> HttpResponse:
    detail = "One field must be changed." if len(errors) == 1 else "Some fields must be changed."
    body = {"detail": detail, "errors": [{"field": f, "message": m} for f, m in errors]}
    return JsonResponse(body, status=422)


def _failed(request: HttpRequest, error: Exception) -> HttpResponse:
    about = {"kind": "REQUEST_FAILED", "method": request.method, "path": request.path}
    logger.error("%s %s failed", request.method, request.path, exc_info=error, extra=about)
    return JsonResponse({"detail": SENTENCES[500]}, status=500)
