"""Policy: which headers the endpoint passes on, to an instance and back to the client.

All headers are end-to-end except the named ones: those of one connection (RFC 9110, section 7.6.1),
those that say how long a body is, and those that belong to gpucoord's own host and login.
"""

from __future__ import annotations

from collections.abc import Iterable

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
