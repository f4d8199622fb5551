"""Sends requests to instances of models and reads their answers as they come."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Self

import httpx

CONNECT_S = 3.0
# A server that is starting or ending, or has too much to do: another instance may answer.
BUSY = frozenset({502, 503, 504})
LONGEST_ERROR = 64 * 1024
_NETWORK = (httpx.TransportError, httpx.InvalidURL)


class InstanceFailed(Exception):
    """The instance did not answer, or broke off; the text says how."""


class Reply:
    """An answer whose head has come."""

    def __init__(self, response: httpx.Response) -> None:
        self._response = response
        self.status = response.status_code
        self.content_type = response.headers.get("content-type", "application/json")
        self.length: str | None = response.headers.get("content-length")

    async def pieces(self) -> AsyncIterator[bytes]:
        """The body as it comes. Raises InstanceFailed when it breaks off."""
        try:
            async for piece in self._response.aiter_raw():
                yield piece
        except _NETWORK as error:
            raise InstanceFailed(_words(error)) from None

    async def error_body(self) -> bytes:
        """The body of an error answer, at most LONGEST_ERROR."""
        body = b""
        async for piece in self.pieces():
            body += piece
            if len(body) > LONGEST_ERROR:
                break
        return body[:LONGEST_ERROR]


class Upstream:
    """The connections to all instances of this host. Proxies of the environment are not used."""

    def __init__(self) -> None:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
        self._client = httpx.AsyncClient(trust_env=False, limits=limits, follow_redirects=False)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._client.aclose()

    @asynccontextmanager
    async def post(self, url: str, body: bytes, stall_s: float) -> AsyncIterator[Reply]:
        """Send a JSON body. Leaving the context ends the connection, and so the generation.

        Raises InstanceFailed when there is no answer, or one of BUSY.
        """
        headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
        timeout = httpx.Timeout(stall_s, connect=CONNECT_S, pool=None)
        request = self._client.build_request(
            "POST", url, content=body, headers=headers, timeout=timeout
        )
        try:
            response = await self._client.send(request, stream=True)
        except _NETWORK as error:
            raise InstanceFailed(_words(error)) from None
        try:
            if response.status_code in BUSY:
                raise InstanceFailed(f"its server answered {response.status_code}")
            yield Reply(response)
        finally:
            await response.aclose()


def _words(error: Exception) -> str:
    if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
        return "its server does not accept connections"
    if isinstance(error, httpx.TimeoutException):
        return "its server sent nothing in time"
    return "its server broke the connection off"
