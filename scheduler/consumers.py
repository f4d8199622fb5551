"""WebSocket door of a job's page: /ws/jobs/ID/?attempt=N&from=OFFSET.

Sends {"job": html, "state", "ended"} when the job changes and {"n", "log": text, "to": offset}
when its log grows; the page answers {"ack": n}, so that a slow one skips ahead and nothing queues.
A plain ASGI application, as the live pages' door is.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable, Iterable
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from channels.auth import get_user
from channels.db import database_sync_to_async
from django.conf import settings
from django.template.loader import render_to_string
from django.utils import timezone

from scheduler import outlook, viewing
from scheduler.jobs import JobState
from scheduler.logs import Decoder
from scheduler.models import Job
from scheduler.pages import job_page
from scheduler.runner import files
from scheduler.tails import Tail, View, tails

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]

SIGNED_OUT = 4401
NO_SUCH_JOB = 4404
RECHECK_S = 60.0
# Pieces of the log on their way to a page that it has not acknowledged.
WINDOW = 8
LAST = job_page.SHOWN_TAIL


async def job(scope: Scope, receive: Receive, send: Send) -> None:
    """Feed one page until it goes, or its user may no longer see the job."""
    await receive()
    await send({"type": "websocket.accept"})
    job_id = int(scope["url_route"]["kwargs"]["pk"])
    may_read = await _may_read(scope["user"], job_id)
    if may_read is None:
        signed_in = scope["user"].is_authenticated
        await send({"type": "websocket.close", "code": NO_SUCH_JOB if signed_in else SIGNED_OUT})
        return
    changed = asyncio.Event()
    async with tails(look).follow(job_id, changed) as tail:
        feed = Feed(tail, changed, send, _query(scope) if may_read else None)
        tasks = [
            asyncio.create_task(feed.run()),
            asyncio.create_task(_watch_rights(scope, job_id, may_read, send)),
        ]
        try:
            while (event := await receive())["type"] != "websocket.disconnect":
                feed.hear(event.get("text") or "")
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


class Feed:
    """Sends one page what is new. `at`: the attempt and offset that it has; None = no log."""

    def __init__(
        self, tail: Tail, changed: asyncio.Event, send: Send, at: tuple[int, int | None] | None
    ) -> None:
        self._tail = tail
        self._changed = changed
        self._send = send
        self._reads_log = at is not None
        self._attempt, self._offset = at or (0, None)
        self._decoder = Decoder(self._offset or 0)
        self._turns = tail.turns
        self._view: View | None = None
        self._n = self._heard = 0

    async def run(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            await self._send_job()
            while self._reads_log and self._n - self._heard < WINDOW and await self._send_log():
                pass

    async def _send_job(self) -> None:
        view = self._tail.view
        if view is None or view == self._view:
            return
        self._view = view
        html = view.for_owner if self._reads_log else view.for_others
        await self._say({"job": html, "state": view.state, "ended": view.ended})

    async def _send_log(self) -> bool:
        """The next piece; False when the page has all there is."""
        view = self._tail.view
        if view is None or view.log is None:
            return False
        message: dict[str, Any] = {}
        if (view.attempt, self._tail.turns) != (self._attempt, self._turns):
            message["anew"] = view.attempt
            self._attempt, self._offset, self._turns = view.attempt, 0, self._tail.turns
            self._decoder = Decoder()
        # A page that says nothing about what it has gets the end of the log.
        since = self._tail.end - LAST if self._offset is None else self._offset
        piece = self._tail.piece(max(0, since))
        if not piece.data and not message:
            if self._offset is not None and self._tail.is_cut:
                self._offset = min(self._offset, piece.end)
            return False
        if piece.start != (self._offset or 0):
            message["skipped"] = max(0, piece.start - (self._offset or 0))
            self._decoder = Decoder(piece.start)
        self._offset = piece.end
        self._n += 1
        text = self._decoder.feed(piece.data)
        await self._say({**message, "n": self._n, "log": text, "to": piece.end})
        return True

    async def _say(self, message: dict[str, Any]) -> None:
        await self._send({"type": "websocket.send", "text": json.dumps(message)})

    def hear(self, text: str) -> None:
        """{"ack": n}: the page has shown all up to n."""
        with contextlib.suppress(ValueError, TypeError, AttributeError):
            self._heard = max(self._heard, min(self._n, int(json.loads(text).get("ack", 0))))
            self._changed.set()


def look(job_ids: Iterable[int]) -> dict[int, View]:
    """What the pages of these jobs show now. Each is rendered once for all who may see the same."""
    return {job.pk: _view(job) for job in viewing.jobs().filter(pk__in=list(job_ids))}


def _view(job: Job) -> View:
    number = viewing.latest_number(job)
    prospect = outlook.of(job, timezone.now())
    shown = job_page.live(job, settings.CONFIG.run_as, prospect)

    def render(may_see_all: bool) -> str:
        context = {**shown, "may_see_all": may_see_all, "now": timezone.now()}
        return render_to_string("scheduler/_live.html", context)

    return View(
        facts=job_page.facts(shown),
        state=job.state,
        ended=job.state == JobState.FINISHED.value,
        attempt=number,
        log=files.log_path(Path(settings.DATA), job.pk, number) if shown["attempt"] else None,
        render=render,
    )


def _query(scope: Scope) -> tuple[int, int | None]:
    """Which attempt's log the page has, and how much of it."""
    asked = parse_qs(scope.get("query_string", b"").decode("ascii", "replace"))
    numbers = {name: asked.get(name, [""])[0] for name in ("attempt", "from")}
    if not all(value.isdecimal() and len(value) < 19 for value in numbers.values()):
        return 1, None
    return int(numbers["attempt"]), int(numbers["from"])


async def _may_read(user: Any, job_id: int) -> bool | None:
    """Whether they may read the log; None: they may not see anything."""
    found: bool | None = await database_sync_to_async(_right)(user, job_id)
    return found


def _right(user: Any, job_id: int) -> bool | None:
    found = Job.objects.filter(pk=job_id).first() if job_id < 2**63 else None
    if found is None or not user.is_authenticated:
        return None
    return viewing.may_see_all(found, user)


async def _watch_rights(scope: Scope, job_id: int, may_read: bool, send: Send) -> None:
    """Close once the user has logged out, or may see less than when the page was opened."""
    engine = import_module(settings.SESSION_ENGINE)
    while True:
        await asyncio.sleep(RECHECK_S)
        user = await get_user({"session": engine.SessionStore(scope["session"].session_key)})
        if user.pk != scope["user"].pk or await _may_read(user, job_id) != may_read:
            await send({"type": "websocket.close", "code": SIGNED_OUT})
            return
