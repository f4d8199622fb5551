"""Django behind ASGI: a thread answers each request in one piece.

Django's own handler changes between the event loop and a thread before and after most middlewares,
about 20 times for each request, in a new thread that opens a new database connection.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import IO, Any, cast

from django.core.exceptions import RequestAborted
from django.core.handlers.asgi import ASGIHandler, get_script_prefix
from django.core.handlers.base import BaseHandler
from django.core.signals import request_started
from django.db import connections
from django.http import FileResponse
from django.http.response import HttpResponseBase
from django.urls import set_script_prefix

# A request may wait for another service. Others must not wait for it, so there is hardly a limit.
MOST_AT_ONCE = 1000
# Threads that keep their connections. PostgreSQL has few, and the other hosts need some, too.
KEPT_CONNECTIONS = 4


class ThreadHandler(ASGIHandler):
    """The middlewares and the view of a request run in one thread."""

    def __init__(self) -> None:
        BaseHandler.__init__(self)
        self.load_middleware(is_async=False)
        self._threads = ThreadPoolExecutor(MOST_AT_ONCE, "request")
        self._kept = threading.BoundedSemaphore(KEPT_CONNECTIONS)
        self._thread = threading.local()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            body = await self.read_body(receive)
        except RequestAborted:
            return
        answering = self._in_a_thread(copy_context().run, self._answer, scope, body)
        try:
            response = await asyncio.shield(answering)
        except asyncio.CancelledError:
            # The client has gone. The view is not interrupted.
            answering.add_done_callback(_close_stream)
            raise
        if not response.streaming:
            await self.send_response(response, send)
            return
        try:
            if not response.is_async:
                response.streaming_content = self._read(response.streaming_content)
            await self.send_response(response, send)
        finally:
            await self._in_a_thread(response.close)

    async def _read(self, parts: Iterable[bytes]) -> AsyncIterator[bytes]:
        """The parts of a stream, each read by a thread: a disk may be slow."""
        iterator = iter(parts)
        while (part := await self._in_a_thread(next, iterator, None)) is not None:
            yield part

    def _in_a_thread(self, action: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        return asyncio.get_running_loop().run_in_executor(self._threads, action, *args)

    def _answer(self, scope: Any, body: IO[bytes]) -> HttpResponseBase:
        """The response. It is closed, unless it is a stream."""
        set_script_prefix(get_script_prefix(scope))
        request_started.send(sender=type(self), scope=scope)
        try:
            request, refusal = self.create_request(scope, body)
            if request is None:
                body.close()
            response: Any = refusal if request is None else self.get_response(request)
            response._handler_class = type(self)
            if isinstance(response, FileResponse):
                response.block_size = self.chunk_size
            if not response.streaming:
                response.close()
            return cast(HttpResponseBase, response)
        finally:
            if not self._keeps_connections():
                connections.close_all()

    def _keeps_connections(self) -> bool:
        """Whether this is one of the threads that do; the first ones are."""
        if not hasattr(self._thread, "keeps"):
            self._thread.keeps = self._kept.acquire(blocking=False)
        return bool(self._thread.keeps)


def _close_stream(done: asyncio.Future[Any]) -> None:
    if not done.cancelled() and done.exception() is None and done.result().streaming:
        done.result().close()
