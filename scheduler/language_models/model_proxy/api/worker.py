"""Gives the prompts of the queue to instances, and stores each answer once.

A prompt belongs to the worker that claimed it. The next worker of the host requeues the prompts of
a killed one. An answer of an attempt that is no longer current is dropped.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from typing import TypeVar

from django.db import DatabaseError
from django.utils import timezone

from monitor.runtime.rows.item_isolation import FaultLog
from monitor.runtime.rows.wakeups import Listener
from scheduler.facts.language_models import Answer
from scheduler.language_models.model_proxy.api.book import FAULT, Board, Book, Place
from scheduler.language_models.model_proxy.policy import (
    EventReader,
    TokenCounter,
    error_text,
    redirect_text,
)
from scheduler.language_models.model_proxy.senders import InstanceFailed, Reply, Upstream
from scheduler.language_models.prompts import rows
from scheduler.language_models.prompts.policy import sentence
from scheduler.models import Prompt

T = TypeVar("T")
LOOK_EVERY_S = 1.0
# Prompts of the queue that this process looks at; the others follow when these are answered.
MOST_AT_ONCE = 200
# An answer that grows is stored this often, for viewers.
STORE_EVERY_S = 0.5
# Reasons of waiting prompts are stored this often: the seconds in them change all the time.
EXPLAIN_EVERY_S = 2.0
logger = logging.getLogger(__name__)


class Lost(Exception):
    """The attempt is no longer the current one: the prompt was cancelled, or put back."""


class PromptFailed(Exception):
    """The prompt can't be answered; the text says why."""


async def work_on_prompts(book: Book, upstream: Upstream) -> None:
    """Run until it is cancelled."""
    await PromptWorker(book, upstream).run()


class PromptWorker:
    def __init__(self, book: Book, upstream: Upstream) -> None:
        self._book, self._upstream = book, upstream
        self._host, self._name = book.host, secrets.token_hex(8)
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._places: dict[int, Place] = {}
        self._explains_t = 0.0
        self._faults = FaultLog(logger)

    async def run(self) -> None:
        stir = asyncio.Event()
        loop = asyncio.get_running_loop()
        with Listener(rows.WAKE) as heard:
            loop.add_reader(heard.fileno(), _hear, heard, stir)
            try:
                while True:
                    stir.clear()
                    try:
                        await self._look()
                    except Exception as error:
                        self._faults.log(error, "A pass over the queue of prompts failed", FAULT)
                    with suppress(TimeoutError):
                        async with asyncio.timeout(LOOK_EVERY_S):
                            await stir.wait()
            finally:
                loop.remove_reader(heard.fileno())
                await self._end()

    async def _end(self) -> None:
        """Put the prompts in hand back, as the process ends in order."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._attempt(lambda: self._recover([]))

    def _recover(self, in_hand: list[int]) -> int:
        return rows.recover(self._host, self._name, in_hand, timezone.now())

    async def _look(self) -> None:
        """Queue new prompts at the board, and store why the others wait."""
        in_hand = list(self._tasks)
        await self._attempt(lambda: self._recover(in_hand))
        waiting = await self._attempt(lambda: rows.waiting(MOST_AT_ONCE))
        if waiting is None:
            return
        listed = {row.pk for row in waiting}
        for row in waiting:
            if row.pk not in self._tasks:
                self._tasks[row.pk] = asyncio.create_task(self._follow(row))
        for id_, task in list(self._tasks.items()):
            place = self._places.get(id_)
            if id_ not in listed and place is not None and not place.taken.done():
                # Cancelled, or taken by another host.
                task.cancel()
        await self._explain(waiting)

    async def _explain(self, waiting: list[Prompt]) -> None:
        """Store why prompts wait, where that is news."""
        now_t = time.monotonic()
        if now_t < self._explains_t:
            return
        reasons = {row.pk: self._why(row.pk)[: rows.LONGEST_REASON] for row in waiting}
        news = {
            row.pk: reasons[row.pk] for row in waiting if reasons[row.pk] not in ("", row.waits_for)
        }
        if news:
            self._explains_t = now_t + EXPLAIN_EVERY_S
            await self._attempt(lambda: rows.explain(news))

    def _why(self, prompt_id: int) -> str:
        place = self._places.get(prompt_id)
        if place is None:
            return ""
        if self._board.service(place.request.service) is None:
            return f"there is no model {place.request.service} any more"
        wait = self._board.wait_of(place)
        return sentence(wait) if wait else ""

    @property
    def _board(self) -> Board:
        return self._book.board

    async def _follow(self, row: Prompt) -> None:
        """One prompt: wait for an instance, ask it, store the answer."""
        try:
            owner = row.owner.get_username()
            with self._board.enter(row.model, owner, row.priority, ("prompt", row.pk)) as place:
                self._places[row.pk] = place
                instance = await place.taken
                attempt = await self._db(
                    lambda: rows.claim(row.pk, self._host, self._name, instance.id, timezone.now())
                )
                if attempt is not None:
                    await self._answer(row, attempt, place)
        except Lost:
            pass
        except Exception as error:
            self._faults.log(error, f"Prompt {row.pk} can't be followed", FAULT)
            await asyncio.sleep(LOOK_EVERY_S)
        finally:
            self._places.pop(row.pk, None)
            self._tasks.pop(row.pk, None)

    async def _answer(self, row: Prompt, attempt: int, place: Place) -> None:
        policy = self._board.situation.policy
        try:
            if not await self._db(lambda: rows.begin(row.pk, attempt, timezone.now())):
                raise Lost
            async with asyncio.timeout(policy.answer_s):
                answer = await self._ask(row, attempt, place, policy.stall_s)
        except PromptFailed as failed:
            reason = str(failed)
            await self._db(lambda: rows.fail(row.pk, attempt, reason, timezone.now()))
        except (InstanceFailed, TimeoutError) as failed:
            how = str(failed) or "the answer took too long"
            reason = f"The instance failed: {how}"
            self._board.suspect(place, how)
            await self._db(lambda: rows.put_back(row.pk, attempt, reason, timezone.now()))
        else:
            if not await self._db(lambda: rows.complete(row.pk, attempt, answer, timezone.now())):
                raise Lost

    async def _ask(self, row: Prompt, attempt: int, place: Place, stall_s: float) -> Answer:
        instance = place.taken.result()
        body = request_body(await self._db(lambda: rows.texts(row.pk)))
        reader, counter = EventReader(), TokenCounter(request_bytes=len(body))
        async with self._upstream.post(instance, "chat/completions", body, stall_s) as reply:
            if 300 <= reply.status < 400:
                raise PromptFailed(redirect_text(reply.status, reply.location))
            if reply.status >= 400:
                text = error_text(await reply.error_body())
                if reply.status >= 500:
                    raise InstanceFailed(f"its server answered {reply.status}: {text}")
                raise PromptFailed(f"The model's server refused it ({reply.status}): {text}")
            await self._read(row.pk, attempt, place, reply, reader, counter)
        if reader.error:
            raise PromptFailed(reader.error)
        if not reader.is_done:
            raise InstanceFailed("its answer ended in the middle")
        reported = counter.reported()
        self._board.answered(place, counter.tokens(), estimated=reported is None)
        prompt_tokens, answer_tokens = reported or (None, None)
        text = "".join(reader.text)
        return Answer(text=text, prompt_tokens=prompt_tokens, completion_tokens=answer_tokens)

    async def _read(
        self,
        prompt_id: int,
        attempt: int,
        place: Place,
        reply: Reply,
        reader: EventReader,
        counter: TokenCounter,
    ) -> None:
        """Read the answer; store its beginning now and then."""
        stored_s, first_at = time.monotonic(), None
        async for piece in reply.plain_pieces():
            counter.feed(piece)
            reader.feed(piece)
            if first_at is None:
                first_at, place.first_s = timezone.now(), time.monotonic()
            if time.monotonic() - stored_s >= STORE_EVERY_S:
                stored_s = time.monotonic()
                await self._store(prompt_id, attempt, "".join(reader.text), first_at)

    async def _store(self, prompt_id: int, attempt: int, text: str, at: datetime) -> None:
        """Raises Lost, which ends the request to the instance."""
        if not await self._db(lambda: rows.grow(prompt_id, attempt, text, at)):
            raise Lost

    async def _db(self, action: Callable[[], T]) -> T:
        return await self._book.database(action)

    async def _attempt(self, action: Callable[[], T]) -> T | None:
        """None: the database does not answer; this is logged once."""
        try:
            return await self._db(action)
        except DatabaseError as error:
            self._faults.log(error, "The queue of prompts can't be read or written", FAULT)
            return None


def _hear(heard: Listener, stir: asyncio.Event) -> None:
    heard.drain()
    stir.set()


def request_body(row: Prompt) -> bytes:
    """The request to the instance. Its parameters cannot replace the model or the messages."""
    fixed = {
        "model": row.model,
        "messages": row.messages,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    return json.dumps({**row.parameters, **fixed}).encode()
