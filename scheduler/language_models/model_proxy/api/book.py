"""Keeps the board and the rows equal: reads services, writes counters, a few times a second."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from math import ceil
from typing import TypeVar

from django.db import DatabaseError, connections
from django.utils import timezone

from monitor.runtime.rows.item_isolation import FaultLog
from monitor.runtime.rows.wakeups import Listener
from scheduler.language_models.model_proxy import rows
from scheduler.language_models.model_proxy.api.board import Board
from scheduler.language_models.model_proxy.facts import Caller, Refused
from scheduler.language_models.model_proxy.policy.openai import UnknownTokens
from scheduler.language_models.model_proxy.rows import SituationReader
from scheduler.language_models.model_services import actions

T = TypeVar("T")
# The rows are read this often, and at once when a wake-up comes, but not more often than the pause.
READ_EVERY_S = 0.5
PAUSE_S = 0.2
# An unknown name of a model reads them before it is refused, at most this often.
UNKNOWN_S = 0.2
CALLER_S = 3.0
MOST_CALLERS = 5000
FAULT = {"kind": "MODEL_PROXY_FAULT"}
WAKE = "models"
logger = logging.getLogger(__name__)


class Database:
    """A thread with a connection of its own."""

    def __init__(self, name: str) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix=name)

    async def __call__(self, action: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, self._run, action)

    def _run(self, action: Callable[[], T]) -> T:
        try:
            return action()
        except DatabaseError:
            connections.close_all()
            raise

    def close(self) -> None:
        self._pool.submit(connections.close_all)
        self._pool.shutdown(wait=False)


class Book:
    """`run()` until it is cancelled."""

    def __init__(self, host: str, address: str = "") -> None:
        self.host, self._address = host, address
        self._stir = asyncio.Event()
        self.board = Board(self._stir.set)
        self.database = Database("book")
        self._auth = Database("auth")
        self._reader = SituationReader(host)
        self._faults = FaultLog(logger)
        # Users of tokens that were valid, until when they are.
        self._callers: dict[str, tuple[float, Caller]] = {}
        self._unknown = UnknownTokens()
        # Monotonic time of the next read; a wake-up makes it due at once.
        self._reads_t = 0.0
        self._read_t = -UNKNOWN_S
        self._reading: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Read once, then keep on reading and writing. Counters of a killed endpoint are reset."""
        loop = asyncio.get_running_loop()
        with Listener(WAKE) as heard:
            loop.add_reader(heard.fileno(), self._hear, heard)
            try:
                await self._attempt(lambda: rows.begin(self.host, self._address))
                while True:
                    try:
                        await self.sync()
                    except Exception as error:
                        self._faults.log(error, "A pass of the endpoint for models failed", FAULT)
                    with suppress(TimeoutError):
                        async with asyncio.timeout(READ_EVERY_S):
                            await self._stir.wait()
                    await asyncio.sleep(PAUSE_S)
            finally:
                loop.remove_reader(heard.fileno())

    async def sync(self) -> None:
        """One pass: write what has changed, then read what is due.

        The counters change with each request, the services seldom.
        """
        self._stir.clear()
        changes = self.board.take_changes()
        if any(changes) and FAILED is await self._attempt(
            lambda: rows.write(*changes, timezone.now())
        ):
            self.board.restore(*changes)
        await self._replace_failing()
        if time.monotonic() < self._reads_t:
            return
        await self._read()

    async def look_again(self) -> None:
        """Read the services by a read that begins now or later; all callers share it."""
        if self._reading is None:
            self._reading = asyncio.create_task(self._read_soon())
        await asyncio.shield(self._reading)

    async def _read_soon(self) -> None:
        await asyncio.sleep(self._read_t + UNKNOWN_S - time.monotonic())
        # Later callers need another read.
        self._reading = None
        await self._read()

    async def _read(self) -> None:
        self._read_t = time.monotonic()
        self._reads_t = self._read_t + READ_EVERY_S
        owners = self.board.waiting_owners()
        situation = await self._attempt(lambda: self._reader.read(owners, timezone.now()))
        if isinstance(situation, rows.Situation):
            self.board.update(situation)

    async def _replace_failing(self) -> None:
        for id_, reason in self.board.take_failing().items():
            replace_it = partial(actions.replace_failing, id_, reason, timezone.now())
            if await self._attempt(replace_it) is FAILED:
                self.board.restore_failing({id_: reason})

    async def caller(self, token: str, address: str, path: str) -> Caller | None:
        """The user of a token, at most CALLER_S old; None: it is invalid.

        address, path: of the request. Raises DatabaseError, and Refused after many invalid tokens
        of the address.
        """
        known = self._callers.get(token)
        now_t = time.monotonic()
        if known is not None and now_t < known[0]:
            return known[1]
        if known is None:
            if self._unknown.is_refused(token, now_t):
                return None
            if delay := self._unknown.delay(address, now_t):
                raise _too_many_unknown(delay)
        caller = await self._auth(lambda: rows.caller_of(token, timezone.now()))
        if caller is None:
            self._callers.pop(token, None)
            self._unknown.add(token, time.monotonic())
            about = {"address": address, "path": path}
            logger.warning("A token was refused", extra={"kind": "TOKEN_REFUSED", **about})
            return None
        if known is None:
            self._unknown.give_back(address)
        return self._remembered(token, caller)

    async def caller_of_host(self, user_id: int) -> Caller | None:
        """The user of a request that another host passes on, at most CALLER_S old."""
        key = f"user {user_id}"
        known = self._callers.get(key)
        if known is not None and time.monotonic() < known[0]:
            return known[1]
        caller = await self._auth(lambda: rows.caller_of_host(user_id, timezone.now()))
        return caller and self._remembered(key, caller)

    def _remembered(self, key: str, caller: Caller) -> Caller:
        if len(self._callers) >= MOST_CALLERS:
            self._callers.clear()
        # Also those that are being written: none counts twice, at worst one is not counted yet.
        caller = replace(caller, written=self.board.written_of[caller.name])
        self._callers[key] = (time.monotonic() + CALLER_S, caller)
        return caller

    def close(self) -> None:
        self.database.close()
        self._auth.close()

    def _hear(self, heard: Listener) -> None:
        heard.drain()
        self._reads_t = 0.0
        self._stir.set()

    async def _attempt(self, action: Callable[[], object]) -> object:
        try:
            return await self.database(action)
        except Exception as error:
            text = "The endpoint for models can't read or write its rows"
            self._faults.log(error, text, FAULT)
            return FAILED


def _too_many_unknown(delay: float) -> Refused:
    seconds = max(1, ceil(delay))
    text = (
        f"Too many requests with invalid tokens came from your address. Try again in {seconds} s."
    )
    return Refused(
        429, text, type_="rate_limit_error", code="too_many_invalid_tokens", retry_after_s=seconds
    )


FAILED = object()
