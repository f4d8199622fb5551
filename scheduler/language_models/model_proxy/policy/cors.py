"""Policy: which web pages of other origins may read answers (Fetch standard, CORS protocol).

A request needs a token in a header, which no browser sends by itself. Therefore no cookies are
involved, and `*` may stand for all origins.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

from scheduler.language_models.model_proxy.facts import Headers

ANY = "*"
KEPT_FOR_S = 600
_NAMES = re.compile(rb"[A-Za-z0-9\-_, ]{1,2000}")


def headers(origin: bytes, allowed: Collection[str]) -> Headers:
    """Headers of an answer to a page of this origin."""
    if not allowed:
        return ()
    vary = (b"vary", b"Origin")
    if not origin or not (ANY in allowed or origin.decode("latin-1") in allowed):
        return (vary,)
    return (
        vary,
        (b"access-control-allow-origin", origin),
        (b"access-control-expose-headers", b"*"),
    )


def preflight(request_headers: Iterable[tuple[bytes, bytes]], allowed: Collection[str]) -> Headers:
    """Headers that say what a browser may send; () = nothing, or it is no such request."""
    names = dict(request_headers)
    if b"access-control-request-method" not in names:
        return ()
    if len(headers(names.get(b"origin", b""), allowed)) < 2:
        return ()
    wanted = names.get(b"access-control-request-headers", b"")
    return (
        (b"access-control-allow-methods", b"GET, HEAD, POST"),
        # `*` would not include Authorization.
        *([(b"access-control-allow-headers", wanted)] if _NAMES.fullmatch(wanted) else []),
        (b"access-control-max-age", b"%d" % KEPT_FOR_S),
    )
