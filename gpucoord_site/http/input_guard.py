"""Middleware: texts that no database stores are refused in addresses and forms.

Request bodies in JSON are checked by `monitor.api.RequestBody`.
"""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, QueryDict
from django.http.response import HttpResponseBase

from gpucoord_site.http import problems
from gpucoord_site.http.errors import PREFIX, refusal
from gpucoord_site.http.middleware import GetResponse, Middleware
from monitor.facts.input_rules import CHARACTER_SENTENCE, is_storable

IN_ADDRESS = "The address has a character that can't be used."
IN_FORM = "A field of the form has a character that can't be used."
FORMS = ("application/x-www-form-urlencoded", "multipart/form-data")


class AddressGuard(Middleware):
    """Refuses NUL in an address (422)."""

    def before(self, request: HttpRequest) -> HttpResponseBase | None:
        if "\0" in request.path:
            return _refusal(request, 422, IN_ADDRESS, [])
        if "%00" not in request.META.get("QUERY_STRING", ""):
            return None
        if fields := _unstorable(request.GET):
            return _refusal(request, 422, IN_ADDRESS, fields)
        return None


class FormGuard(Middleware):
    """Refuses NUL and half surrogate pairs in fields of a form, after the login was checked."""

    def __init__(self, get_response: GetResponse) -> None:
        super().__init__(get_response)
        if self.is_async:
            # Otherwise Django would run it in a thread for each request.
            self.process_view = self._process_view_async  # type: ignore[method-assign]

    def process_view(self, request: HttpRequest, *_view: object) -> Any:
        """None: nothing is wrong."""
        if request.method != "POST" or request.content_type not in FORMS:
            return None
        if request.path.startswith(PREFIX) or not _unstorable(request.POST):
            return None
        return refusal(request, 422, IN_FORM)

    async def _process_view_async(self, request: HttpRequest, *view: object) -> Any:
        return FormGuard.process_view(self, request, *view)


def _refusal(
    request: HttpRequest, status: int, sentence: str, fields: list[str]
) -> HttpResponseBase:
    if not request.path.startswith(PREFIX):
        return refusal(request, status, sentence)
    errors = [{"field": each, "message": CHARACTER_SENTENCE} for each in fields]
    return problems.response(status, sentence, errors)


def _unstorable(query: QueryDict) -> list[str]:
    """Names of the fields whose name or values can't be stored."""
    return [
        name
        for name, values in query.lists()
        if not all(map(is_storable, (name, *map(str, values))))
    ]
