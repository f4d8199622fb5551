"""Limits of the HTTP connection, before any view or login: size of a body, time of a request.

Twisted reads a whole body before the application starts, and its own timeout starts again with
each byte. Import this after the fork only, like Twisted's reactor.
"""

from __future__ import annotations

import json
from typing import Any

from daphne.http_protocol import HTTPFactory, WebRequest
from twisted.web.http import HTTPChannel

from gpucoord_site.http import errors

# Twisted's channel has no types.
# mypy: disable-error-code="no-untyped-call"


MOST_BODY_BYTES = 4 * 1024**2
# From the first byte to the end of the headers, and from there to the end of the body.
HEAD_S = 15.0
BODY_S = 60.0
# How long data of a refused request is read and dropped, so that the client reads the answer.
LINGER_S = 2.0
# More digits than any size has. Python refuses to convert thousands of them.
MOST_DIGITS = 18

TOO_LARGE = (413, "Content Too Large", f"The body is too large: at most {MOST_BODY_BYTES} bytes.")
TOO_SLOW = (408, "Request Timeout", "The request did not arrive in time.")
Refusal = tuple[int, str, str]


class LimitedRequest(WebRequest):  # type: ignore[misc]
    """Bounds a body whose length is not announced."""

    # The application parses forms itself.
    _parsePOSTFormSubmission = False
    _received = 0

    def handleContentChunk(self, data: bytes) -> None:
        self._received += len(data)
        if self._received > MOST_BODY_BYTES:
            self.channel.refuse(TOO_LARGE)
        elif not self.channel.is_refused:
            super().handleContentChunk(data)


class LimitedChannel(HTTPChannel):
    """One connection. `_deadline`: when the request that arrives must be complete."""

    transport: Any
    is_refused = False
    _deadline: Any = None

    def dataReceived(self, data: bytes) -> None:
        if self.is_refused:
            return
        if self._deadline is None and not self._handlingRequest:
            self._expect_within(HEAD_S)
        super().dataReceived(data)

    def requestDone(self, request: Any) -> None:
        super().requestDone(request)
        # Part of the next request may have come with this one.
        is_waiting = self._deadline is None and not self._handlingRequest
        if is_waiting and self._buffer and self.persistent:
            self._expect_within(HEAD_S)

    def _maybeChooseTransferDecoder(self, header: bytes, data: bytes) -> bool:
        if header == b"Content-Length" and data.isdigit() and len(data) > MOST_DIGITS:
            self.refuse(TOO_LARGE)
            return False
        return bool(super()._maybeChooseTransferDecoder(header, data))

    def lineReceived(self, line: bytes) -> None:
        if not self.is_refused:
            super().lineReceived(line)

    def allHeadersReceived(self) -> None:
        if self.length is not None and self.length > MOST_BODY_BYTES:
            self.refuse(TOO_LARGE)
            return
        if self.length != 0:
            self._expect_within(BODY_S)
        super().allHeadersReceived()

    def allContentReceived(self) -> None:
        if not self.is_refused:
            self._expect_within(None)
            super().allContentReceived()

    def connectionLost(self, reason: Any = None) -> None:
        self._expect_within(None)
        super().connectionLost(reason)

    def refuse(self, refusal: Refusal) -> None:
        """Answer now, drop what else arrives, and close the connection soon."""
        if self.is_refused:
            return
        self.is_refused = True
        self.setTimeout(None)
        self.transport.write(_response(refusal, getattr(self, "_path", b"")))
        self._expect_within(LINGER_S)

    def _expect_within(self, seconds: float | None) -> None:
        """Start the deadline anew; None ends it."""
        if self._deadline is not None and self._deadline.active():
            self._deadline.cancel()
        self._deadline = None if seconds is None else self.callLater(seconds, self._at_deadline)

    def _at_deadline(self) -> None:
        self._deadline = None
        if self.is_refused:
            self.transport.abortConnection()
        else:
            self.refuse(TOO_SLOW)


class LimitedFactory(HTTPFactory):  # type: ignore[misc]
    """Makes limited connections. HTTP/2 is not offered: it needs TLS, which a proxy terminates."""

    protocol = LimitedChannel

    def buildProtocol(self, addr: Any) -> Any:
        channel = super().buildProtocol(addr)
        channel.requestFactory = LimitedRequest
        return channel


def _response(refusal: Refusal, path: bytes) -> bytes:
    status, reason, sentence = refusal
    is_api = path.startswith(b"/api/")
    problem = json.dumps(errors.body(status, sentence))
    body = (problem if is_api else f"{sentence}\n").encode()
    kind = errors.CONTENT_TYPE if is_api else "text/plain; charset=utf-8"
    lines = [
        f"HTTP/1.1 {status} {reason}",
        f"Content-Type: {kind}",
        f"Content-Length: {len(body)}",
        "Cache-Control: no-store",
        "Connection: close",
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body
