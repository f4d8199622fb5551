"""One request of the endpoint: it waits for an instance; its answer is passed on as it comes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from scheduler.facts.prompts import MOST_ATTEMPTS, Wait
from scheduler.model_proxy.api.board import Board, Place
from scheduler.model_proxy.facts import Caller, ModelRequest, Refused
from scheduler.model_proxy.policy import openai
from scheduler.model_proxy.senders import InstanceFailed, Reply, Upstream
from scheduler.prompts.policy.limits import PromptPolicy
from scheduler.prompts.wording import retry_after_s, sentence

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
# A waiting stream begins after the first interval; its reason is repeated at the second one.
FIRST_COMMENT_S, COMMENT_EVERY_S = 1.0, 10.0
EVENTS = "text/event-stream; charset=utf-8"


class Outlet:
    """The answer to the client: a head, then pieces. `send` waits while the client reads slowly."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.is_begun = False
        self.has_body = False
        self._is_stream = False

    async def begin(self, status: int, content_type: str, **headers: str) -> None:
        self.is_begun = True
        self._is_stream = content_type.startswith("text/event-stream")
        named = {
            "content-type": content_type,
            "cache-control": "no-store",
            "x-accel-buffering": "no",
            **{name.replace("_", "-"): value for name, value in headers.items()},
        }
        encoded = [(name.encode(), value.encode("latin-1")) for name, value in named.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": encoded})

    async def piece(self, body: bytes) -> None:
        self.has_body = True
        await self._send({"type": "http.response.body", "body": body, "more_body": True})

    async def end(self) -> None:
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def comment(self, text: str) -> None:
        if not self.is_begun:
            await self.begin(200, EVENTS)
        await self._send(
            {"type": "http.response.body", "body": openai.comment(text), "more_body": True}
        )

    async def refuse(self, refused: Refused) -> None:
        """An error answer, or an error event in a stream that has begun.

        Another answer that has begun just ends, incomplete, so that its connection is closed.
        """
        if self.is_begun and not self._is_stream:
            return
        if self.is_begun:
            await self.piece(openai.error_event(refused))
        else:
            after = refused.retry_after_s
            more = {} if after is None else {"retry_after": str(after)}
            await self.begin(refused.status, "application/json", **more)
            await self.piece(openai.error_body(refused))
        await self.end()


class Exchange:
    """wait_s: how long the request may wait for an instance."""

    def __init__(self, board: Board, upstream: Upstream, outlet: Outlet, wait_s: float) -> None:
        self._board, self._upstream, self._outlet = board, upstream, outlet
        self._wait_s = wait_s

    async def run(self, request: ModelRequest, caller: Caller) -> None:
        """Answer the request. Raises Refused."""
        policy = self._board.situation.policy
        with self._board.enter(request.model, caller.name, request.priority) as place:
            try:
                for _ in range(MOST_ATTEMPTS):
                    await self._taken(place, request)
                    try:
                        async with asyncio.timeout(policy.answer_s):
                            await self._pass_on(place, request, policy)
                        return
                    except (InstanceFailed, TimeoutError) as error:
                        self._give_up_begun(error)
                        self._board.retry(place)
                raise Refused(502, _gave_up(request.model), type_="server_error")
            except Refused:
                if not place.is_counted:
                    self._board.failed(place)
                raise

    def _give_up_begun(self, error: Exception) -> None:
        """A part of the answer cannot be taken back, so no other instance may answer."""
        if self._outlet.has_body:
            text = f"The answer broke off: {str(error) or 'it took too long'}."
            raise Refused(502, text, type_="server_error") from None

    async def _taken(self, place: Place, request: ModelRequest) -> None:
        """Wait until an instance takes the request; a stream says meanwhile why it waits."""
        until = time.monotonic() + self._wait_s
        pause = FIRST_COMMENT_S
        while not place.taken.done():
            self._refuse_elsewhere(request.model)
            left = until - time.monotonic()
            if left <= 0:
                raise self._too_long(place)
            await asyncio.wait([place.taken], timeout=min(left, pause))
            if not place.taken.done() and request.streams and time.monotonic() < until:
                wait = self._board.wait_of(place)
                await self._outlet.comment(sentence(wait) if wait else "waiting")
                pause = COMMENT_EVERY_S

    def _refuse_elsewhere(self, model: str) -> None:
        """A request for a model that only other hosts run would wait in vain."""
        service = self._board.service(model)
        if service is not None and service.elsewhere:
            raise Refused(421, service.elsewhere, code="model_on_other_host")

    def _too_long(self, place: Place) -> Refused:
        wait = self._board.wait_of(place)
        return busy(wait, place.request.service)

    async def _pass_on(self, place: Place, request: ModelRequest, policy: PromptPolicy) -> None:
        instance = place.taken.result()
        counter = openai.TokenCounter(request_bytes=len(request.body))
        try:
            async with self._upstream.post(
                instance, request.path, request.body, policy.stall_s
            ) as reply:
                if reply.status >= 400:
                    await self._pass_error(reply)
                    self._board.failed(place)
                    return
                await self._pass_pieces(place, reply, counter)
        except asyncio.CancelledError:
            # The client left: what was answered until then counts.
            if counter.size:
                self._board.answered(place, counter.tokens(), estimated=True)
            raise
        self._board.answered(place, counter.tokens(), estimated=counter.reported() is None)
        await self._outlet.end()

    async def _pass_pieces(self, place: Place, reply: Reply, counter: openai.TokenCounter) -> None:
        async for piece in reply.pieces():
            if place.first_s is None:
                place.first_s = time.monotonic()
            if not self._outlet.is_begun:
                await self._begin(reply)
            counter.feed(piece)
            await self._outlet.piece(piece)
        if not self._outlet.is_begun:
            await self._begin(reply)

    async def _begin(self, reply: Reply) -> None:
        length = {} if reply.length is None else {"content_length": reply.length}
        await self._outlet.begin(reply.status, reply.content_type, **length)

    async def _pass_error(self, reply: Reply) -> None:
        """The model's server refuses the request: its own answer, as it is."""
        body = await reply.error_body()
        if self._outlet.is_begun:
            text = openai.error_text(body)
            await self._outlet.refuse(Refused(reply.status, text))
            return
        await self._outlet.begin(reply.status, reply.content_type)
        await self._outlet.piece(body)
        await self._outlet.end()


def busy(wait: Wait | None, model: str) -> Refused:
    why = sentence(wait) if wait is not None else "no instance is ready"
    return Refused(
        503,
        f"{model} can't answer now: {why}. Try again later.",
        type_="server_error",
        code="model_not_ready",
        retry_after_s=retry_after_s(wait),
    )


def _gave_up(model: str) -> str:
    return f"{MOST_ATTEMPTS} instances of {model} failed with this request. Ask an operator."
