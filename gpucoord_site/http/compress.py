"""Compressed answers for clients that accept them."""

from __future__ import annotations

from typing import cast

from django.conf import settings
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.middleware.gzip import GZipMiddleware

from gpucoord_site.http.middleware import Middleware

COMPRESSED = ("text/html", "text/css", "text/javascript", "application/json", "image/svg+xml")


class Compress(Middleware):
    """Compresses pages, REST answers and static files.

    Logs and other answers that are streamed stay as they are: each piece must arrive at once.
    An answer to HEAD stays, too: the end of an empty stream would be sent as its body, and stand
    before the next answer of the connection.
    Django's random padding hides the lengths from which secrets could be guessed (BREACH).
    """

    def after(self, request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
        kind = response.headers.get("Content-Type", "").partition(";")[0]
        is_file = request.path.startswith(settings.STATIC_URL) and response.status_code == 200
        is_piecewise = response.streaming and not is_file
        if request.method == "HEAD" or kind not in COMPRESSED or is_piecewise:
            return response
        return _gzip.process_response(request, response)


_gzip = GZipMiddleware(lambda request: cast(HttpResponseBase, None))
