"""WebSocket of a job's page: /ws/jobs/ID/?attempt=N&from=OFFSET.

Sends {"job": html, "state", "ended"} when the job changes, and {"n", "log": text, "to": offset}
when its log grows. The page answers {"ack": n}, so a slow page skips ahead and nothing queues.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from channels.db import database_sync_to_async
from django.conf import settings
from django.template.loader import render_to_string
from django.utils import timezone

from monitor.facts.input_rules import is_number
from monitor.pages.live.consumers import (
    SIGNED_OUT,
    Receive,
    Scope,
    Send,
    page_message,
    serve_page,
    session_user,
)
from scheduler.dispatch.steps import preview
from scheduler.execution.hosts.pages import elsewhere
from scheduler.execution.hosts.probes import RemoteLog
from scheduler.facts.jobs import JobState
from scheduler.jobs.lifecycle.probes import Decoder
from scheduler.jobs.live.log_follow import JobView, LogTail, tails
from scheduler.jobs.pages import detail as job_page
from scheduler.jobs.pages import serialise as job_views
from scheduler.models import Job
from scheduler.runner import files

NO_SUCH_JOB = 4404
# Unacknowledged pieces of the log at a time.
WINDOW = 8
LAST = job_page.SHOWN_TAIL


async def job(scope: Scope, receive: Receive, send: Send) -> None:
    """Feed one page until it leaves or its user loses access to the job."""
    await receive()
    await send({"type": "websocket.accept"})
    job_id = int(scope["url_route"]["kwargs"]["pk"])
    may_read = await _may_read(scope["user"], job_id)
    if may_read is None:
        signed_in = scope["user"].is_authenticated
        await send({"type": "websocket.close", "code": NO_SUCH_JOB if signed_in else SIGNED_OUT})
        return

    async def is_allowed() -> bool:
        return await _has_same_rights(scope, job_id, may_read)

    @asynccontextmanager
    async def open_feed(send: Send) -> AsyncIterator[JobFeed]:
        changed = asyncio.Event()
        async with tails(load_views).follow(job_id, changed) as tail:
            position = _log_position(scope) if may_read else None
            yield JobFeed(tail, changed, send, position, scope["user"].username)

    await serve_page(scope, receive, send, open_feed, is_allowed)


class JobFeed:
    """Sends one page the changes of its job.

    `position`: the attempt and the log offset that the page shows; None: the page shows no log.
    `viewer`: the name of the page's user.
    """

    def __init__(
        self,
        tail: LogTail,
        changed: asyncio.Event,
        send: Send,
        position: tuple[int, int | None] | None,
        viewer: str = "",
    ) -> None:
        self._viewer = viewer
        self._tail = tail
        self._changed = changed
        self._send = send
        self._reads_log = position is not None
        self._attempt, self._offset = position or (0, None)
        self._decoder = Decoder(self._offset or 0, keeps_colours=True)
        self._restarts = tail.restarts
        self._view: JobView | None = None
        self._sent = self._acknowledged = 0

    async def run(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            await self._send_job()
            while (
                self._reads_log
                and self._sent - self._acknowledged < WINDOW
                and await self._send_log()
            ):
                pass

    async def _send_job(self) -> None:
        view = self._tail.view
        if view is None or view == self._view:
            return
        self._view = view
        is_owner = self._viewer == view.owner
        for_reader = view.for_owner if is_owner else view.for_operators
        html = for_reader if self._reads_log else view.for_others
        await self._send_json({"job": html, "state": view.state, "ended": view.ended})

    async def _send_log(self) -> bool:
        """Send the next piece of the log. False: the page has the whole log."""
        view = self._tail.view
        if view is None or view.log is None:
            return False
        message: dict[str, Any] = {}
        if (view.attempt, self._tail.restarts) != (self._attempt, self._restarts):
            message["anew"] = view.attempt
            self._attempt, self._offset = view.attempt, 0
            self._restarts = self._tail.restarts
            self._decoder = Decoder(keeps_colours=True)
        # A page without a position gets the end of the log.
        since = self._tail.end - LAST if self._offset is None else self._offset
        piece = self._tail.piece(max(0, since))
        if not piece.data and not message:
            if self._offset is not None and self._tail.is_cut:
                self._offset = min(self._offset, piece.end)
            return False
        if piece.start != (self._offset or 0):
            message["skipped"] = max(0, piece.start - (self._offset or 0))
            self._decoder = Decoder(piece.start, keeps_colours=True)
        self._offset = piece.end
        self._sent += 1
        text = self._decoder.feed(piece.data)
        await self._send_json({**message, "n": self._sent, "log": text, "to": piece.end})
        return True

    async def _send_json(self, message: dict[str, Any]) -> None:
        await self._send({"type": "websocket.send", "text": json.dumps(message)})

    def hear(self, text: str | None) -> None:
        """{"ack": n}: the page shows all pieces up to n."""
        ack = min(self._sent, page_message(text).ack)
        self._acknowledged = max(self._acknowledged, ack)
        self._changed.set()


def load_views(job_ids: Iterable[int]) -> dict[int, JobView]:
    """The content of these jobs' pages, rendered once for all users with the same rights."""
    return {job.pk: _view(job) for job in job_views.jobs().filter(pk__in=list(job_ids))}


def _view(job: Job) -> JobView:
    number = job_views.latest_number(job)
    forecast = preview.of(job, timezone.now())
    content = job_page.live(job, settings.CONFIG.run_as, forecast)

    def render(may_see_all: bool, viewer: str) -> str:
        context = {**content, "may_see_all": may_see_all, "viewer": viewer, "now": timezone.now()}
        return render_to_string("scheduler/_live.html", context)

    return JobView(
        facts=job_page.facts(content),
        state=job.state,
        ended=job.state == JobState.FINISHED.value,
        attempt=number,
        log=_log_of(job, number) if content["attempt"] else None,
        render=render,
        owner=job.owner.username,
    )


def _log_of(job: Job, number: int) -> Path | RemoteLog | None:
    """None: it is on a host without pages."""
    path = files.log_path(Path(settings.DATA), job.pk, number)
    remote = elsewhere(job_views.latest(job), path)
    return path if remote is None else remote if remote.address else None


def _log_position(scope: Scope) -> tuple[int, int | None]:
    """The attempt and the log offset that the page shows. Offset None: not given."""
    query = parse_qs(scope.get("query_string", b"").decode("ascii", "replace"))
    numbers = {name: query.get(name, [""])[0] for name in ("attempt", "from")}
    if not all(map(is_number, numbers.values())):
        return 1, None
    return int(numbers["attempt"]), int(numbers["from"])


async def _may_read(user: Any, job_id: int) -> bool | None:
    """Whether the user may read the log. None: the user may not see the job."""
    may_read: bool | None = await database_sync_to_async(_log_right)(user, job_id)
    return may_read


def _log_right(user: Any, job_id: int) -> bool | None:
    row = Job.objects.filter(pk=job_id).first() if job_id < 2**63 else None
    if row is None or not user.is_authenticated:
        return None
    return job_views.may_see_all(row, user)


async def _has_same_rights(scope: Scope, job_id: int, may_read: bool) -> bool:
    """Whether the user is still logged in with the rights that the page was opened with."""
    user = await session_user(scope)
    return user.pk == scope["user"].pk and await _may_read(user, job_id) == may_read
