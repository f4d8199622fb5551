"""Sends requests to instances of models and reads their answers as they come."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

import httpx

from scheduler.facts.prompts import Instance
from scheduler.model_services.probes import is_taken, uid_of

CONNECT_S = 3.0
# A server that is starting or ending, or has too much to do: another instance may answer.
BUSY = frozenset({502, 503, 504})
LONGEST_ERROR = 64 * 1024
CHECKED_FOR_S = 0.2
MOST_CHECKED = 1000
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
    """The connections to all instances of this host. Proxies of the environment are not used.

    run_as: the setting; it decides about the account of an instance.
    """

    def __init__(self, run_as: str = "auto") -> None:
        self._run_as = run_as
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
        self._checked_until: dict[tuple[int, str], float] = {}
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

    async def _check_listener(self, of: Instance) -> None:
        """Raises InstanceFailed. A result holds for CHECKED_FOR_S."""
        port, now = _port(of.url), time.monotonic()
        if now < self._checked_until.get((port, of.account), 0.0):
            return
        # A directory service of the host may be slow to name the account.
        if await asyncio.to_thread(self._is_taken, port, of.account):
            raise InstanceFailed(f"a process of another account listens on its port {port}")
        if len(self._checked_until) >= MOST_CHECKED:
            self._checked_until.clear()
        self._checked_until[port, of.account] = now + CHECKED_FOR_S

    def _is_taken(self, port: int, account: str) -> bool:
        return is_taken(port, uid_of(account, self._run_as))

    @asynccontextmanager
    async def post(
        self, of: Instance, path: str, body: bytes, stall_s: float
    ) -> AsyncIterator[Reply]:
        """Send a JSON body. Leaving the context ends the connection, and so the generation.

        Raises InstanceFailed when there is no answer, or one of BUSY, and when another account
        listens on the instance's port.
        """
        url = f"{of.url}/{path}"
        await self._check_listener(of)
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


def _port(url: str) -> int:
    return urlsplit(url).port or 80


def _words(error: Exception) -> str:
    if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
        return "its server does not accept connections"
    if isinstance(error, httpx.TimeoutException):
        return "its server sent nothing in time"
    return "its server broke the connection off"
