"""The loops of the endpoint go on after a pass that fails."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from scheduler.facts.language_models import DayUse
from scheduler.language_models.model_proxy import rows
from scheduler.language_models.model_proxy.api.book import Book
from scheduler.language_models.model_proxy.api.worker import PromptWorker
from scheduler.language_models.model_proxy.policy import Caller
from scheduler.language_models.model_proxy.senders import Upstream
from scheduler.language_models.prompts import rows as prompts
from tests.pace import LONGEST_S


class Passes:
    """Stands for one pass; the first one fails."""

    def __init__(self, result: object = None) -> None:
        self.count, self._result = 0, result

    def __call__(self, *_: object) -> Any:
        self.count += 1
        if self.count == 1:
            raise ValueError("a row that cannot be read")
        return self._result


async def runs_until(loop: Coroutine[Any, Any, None], is_done: Callable[[], bool]) -> None:
    task = asyncio.create_task(loop)
    try:
        async with asyncio.timeout(LONGEST_S):
            while not is_done():
                assert not task.done(), task.exception()
                await asyncio.sleep(0.01)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
def book(monkeypatch: pytest.MonkeyPatch) -> Book:
    made = Book("here")
    monkeypatch.setattr(rows, "begin", lambda *_: None)
    monkeypatch.setattr(made._reader, "read", lambda owners, now: rows.Situation())
    return made


async def test_services_are_read_after_a_pass_that_failed(
    book: Book, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes = Passes()
    monkeypatch.setattr(book.board, "update", passes)

    await runs_until(book.run(), lambda: passes.count >= 2)
    book.close()


async def test_prompts_are_read_after_a_pass_that_failed(
    book: Book, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes = Passes([])
    monkeypatch.setattr(prompts, "recover", lambda *_: 0)
    monkeypatch.setattr(prompts, "waiting", passes)

    async with Upstream() as upstream:
        await runs_until(PromptWorker(book, upstream).run(), lambda: passes.count >= 2)
    book.close()


async def test_a_request_counts_once_while_it_is_written(
    book: Book, monkeypatch: pytest.MonkeyPatch
) -> None:
    board = book.board
    with board.enter("small", "bob", 3):
        pass
    board._uses = [prompts.Use(model="small", owner="bob")]
    used = Caller(user_id=2, name="bob", used=DayUse(1, 0))
    monkeypatch.setattr(rows, "caller_of", lambda token, now: used)

    changes = board.take_changes()
    caller = await book.caller("token", "127.0.0.1", "/v1/")

    assert caller is not None
    assert caller.used.requests + board.came_since("bob", caller.written) == 1
    board.restore(*changes)
    assert board.came_since("bob", board.written_of["bob"]) == 1
    book.close()
