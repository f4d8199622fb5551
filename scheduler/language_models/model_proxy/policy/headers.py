"""Policy: which headers the endpoint passes on, to an instance and back to the client.

All headers are end-to-end except the named ones: those of one connection (RFC 9110, section 7.6.1),
those that say how long a body is, and those that belong to gpucoord's own host and login.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

from scheduler.language_models.model_proxy.facts import Headers

OF_CONNECTION = frozenset(
    {b"connection", b"keep-alive", b"te", b"trailer", b"transfer-encoding", b"upgrade"}
)
# Tokens and cookies of gpucoord; what it answers itself; the browser's rules, which are for this
# host. The instance must not encode the answer, as its tokens are counted.
NOT_SENT = OF_CONNECTION | {
    b"host", b"content-length", b"expect", b"authorization", b"x-api-key", b"api-key", b"cookie",
    b"prefer", b"x-gpucoord-priority", b"accept-encoding", b"origin", b"referer", b"forwarded",
    b"via", b"x-real-ip", b"if-none-match", b"if-modified-since", b"range",
}  # fmt: skip
# A cookie or a policy of a model's server would apply to the page of gpucoord, too.
NOT_RETURNED = OF_CONNECTION | {
    b"content-length", b"content-type", b"date", b"server", b"location", b"set-cookie",
    b"www-authenticate", b"strict-transport-security", b"public-key-pins", b"alt-svc",
    b"clear-site-data", b"cache-control", b"expires", b"pragma", b"refresh", b"x-sendfile",
    b"x-content-type-options", b"service-worker-allowed",
}  # fmt: skip
# Proxies before the endpoint obey X-Accel-*.
PREFIXES = (b"proxy-", b"x-forwarded-", b"access-control-", b"sec-", b"x-accel-")


def sent(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """Headers of a client's request that an instance gets. Names are in lower case."""
    return _passed(headers, NOT_SENT)


def returned(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """Headers of an instance's answer that the client gets. Names are in lower case."""
    return _passed(headers, NOT_RETURNED)


def _passed(headers: Iterable[tuple[bytes, bytes]], removed: frozenset[bytes]) -> Headers:
    """Without those that `Connection` names: they are of one connection, too."""
    pairs = tuple(headers)
    for name, value in pairs:
        if name == b"connection":
            removed |= {token.strip().lower() for token in value.split(b",")}
    return tuple(
        (name, value)
        for name, value in pairs
        if name not in removed and not name.startswith(PREFIXES)
    )


# How many bytes of bodies the endpoint parses for one user.
#
# Parsing JSON holds up all streams of the endpoint, up to 0.02 s for each MiB. A user has AT_ONCE
# bytes, and then BYTES_PER_S.

BYTES_PER_S, AT_ONCE = 8.0 * 1024**2, 64.0 * 1024**2


class BodyRate:
    """Times are seconds of one clock, which the caller reads."""

    def __init__(self) -> None:
        # When the bodies of a user so far would all have been parsed at BYTES_PER_S.
        self._due: dict[int, float] = {}

    def delay(self, user: int, size: int, now: float) -> float:
        """Count a body; the seconds until it may be parsed, which are 0 if it may."""
        due = max(self._due.get(user, now), now) + size / BYTES_PER_S
        delay = due - now - AT_ONCE / BYTES_PER_S
        if delay > 1e-6:
            return delay
        self._due[user] = due
        return 0.0


# Which web pages of other origins may read answers (Fetch standard, CORS protocol).
#
# A request needs a token in a header, which no browser sends by itself. Therefore no cookies are
# involved, and `*` may stand for all origins.

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
