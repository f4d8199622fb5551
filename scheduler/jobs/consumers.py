"""Followed jobs of this web process: one watcher for all jobs, one reader for each log.

While a job has viewers, its log is checked several times a second and its row at each wake-up. The
end of the log stays in memory for all viewers. Without viewers nothing is read.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from time import monotonic
from typing import Any
from urllib.parse import parse_qs
from weakref import WeakKeyDictionary

from channels.db import database_sync_to_async
from django.conf import settings
from django.template.loader import render_to_string
from django.utils import timezone

from monitor.facts.input_rules import is_number
from monitor.pages.hub import (
    SIGNED_OUT,
    Receive,
    Scope,
    Send,
    page_message,
    serve_page,
    session_user,
)
from monitor.runtime.rows.item_isolation import FaultLog
from monitor.runtime.rows.wakeups import Listener
from scheduler.dispatch.steps import preview
from scheduler.execution.pages import elsewhere
from scheduler.execution.probes import RemoteLog, Unreachable
from scheduler.facts.jobs import JobState
from scheduler.jobs.pages import detail as job_page
from scheduler.jobs.pages import serialise as job_views
from scheduler.jobs.probes import CHUNK, Decoder, LogPiece, read, size_of
from scheduler.models import Job
from scheduler.runner import files

logger = logging.getLogger(__name__)
FAULT = {"kind": "LOG_FOLLOW_FAULT"}

# The end of a log that stays in memory.
BUFFER_BYTES = 4 * CHUNK
# How often job rows are read without a wake-up.
POLL_S = 1.0
# Pauses between two reads of the logs, while one grows and otherwise.
BUSY_S = 0.1
QUIET_S = 0.4
# Pause after a host that has the log did not answer.
REMOTE_PAUSE_S = 10.0
# Wake-ups come in bursts: job rows are read at most this often.
BURST_S = 0.05


@dataclass(frozen=True)
class JobView:
    """The page content of a followed job. Equal views show the same; `render` makes the HTML."""

    facts: object
    state: str
    ended: bool
    attempt: int
    log: Path | RemoteLog | None
    # Of (may_see_all, viewer): the viewer is the owner's name, or "" for other users.
    render: Callable[[bool, str], str] = field(compare=False)
    owner: str = ""

    @cached_property
    def for_owner(self) -> str:
        return self.render(True, self.owner)

    @cached_property
    def for_operators(self) -> str:
        return self.render(True, "")

    @cached_property
    def for_others(self) -> str:
        return self.render(False, "")


LoadViews = Callable[[Iterable[int]], Mapping[int, JobView]]


class LogTail:
    """The log of one followed job. The viewers' events are set when it changes."""

    def __init__(self, job_id: int) -> None:
        self.job_id = job_id
        self.view: JobView | None = None
        self.viewers: set[asyncio.Event] = set()
        self.start = self.end = 0
        self._buffer = b""
        self._done = False
        self._ask_again_at = 0.0
        # The log reached its size limit while it was followed.
        self.is_cut = False
        # How often the page must show the log from its start again, because its end was cut.
        self.restarts = 0

    def show(self, view: JobView) -> None:
        if view == self.view:
            return
        if self.view is None or view.log != self.view.log:
            self._clear()
        elif self.is_cut and view.ended:
            # The runner has written the end of the log again, after the part that was cut.
            self._clear()
            self.restarts += 1
        self._done = False
        self.view = view
        self._notify()

    async def read(self) -> bool:
        """Read the new part of the log. True: the log has changed."""
        view = self.view
        if view is None or view.log is None or self._done:
            return False
        size = await self._size(view.log)
        if size is None or size == self.end:
            # Nothing is written after the end was recorded.
            self._done = view.ended and size is not None
            return False
        if self.start < size < self.end and not view.ended:
            # The log has reached its size limit and lost its end.
            self._buffer, self.end, self.is_cut = self._buffer[: size - self.start], size, True
            self._notify()
            return True
        # A much shorter log was truncated by another process: read it from its start.
        since = self.end if self.end < size else 0
        start = max(since, size - BUFFER_BYTES)
        piece = await self._piece_of(view.log, start)
        if self.view is not view or piece is None:
            return False
        data = self._buffer + piece.data if start == self.end else piece.data
        self._buffer = data[-BUFFER_BYTES:]
        self.end = piece.end
        self.start = self.end - len(self._buffer)
        self._notify()
        return True

    async def _size(self, log: Path | RemoteLog) -> int | None:
        """None: it is on another host, which does not answer."""
        if isinstance(log, Path):
            return await asyncio.to_thread(size_of, log)
        piece = await self._of_other_host(log, 0, 0)
        return None if piece is None else piece.size

    async def _piece_of(self, log: Path | RemoteLog, start: int) -> LogPiece | None:
        if isinstance(log, Path):
            return await asyncio.to_thread(read, log, start, BUFFER_BYTES)
        return await self._of_other_host(log, start, BUFFER_BYTES)

    async def _of_other_host(self, log: RemoteLog, start: int, limit: int) -> LogPiece | None:
        """None: it does not answer; the next attempt is later."""
        if monotonic() < self._ask_again_at:
            return None
        try:
            return await asyncio.to_thread(log.read, start, limit)
        except Unreachable:
            self._ask_again_at = monotonic() + REMOTE_PAUSE_S
            return None

    def _clear(self) -> None:
        self.start = self.end = 0
        self._buffer = b""
        self.is_cut = False

    def piece(self, offset: int) -> LogPiece:
        """The log from `offset` on; later if that part is no longer in memory."""
        if self.is_cut:
            offset = min(offset, self.end)
        start = offset if self.start <= offset <= self.end else self.start
        begin = start - self.start
        return LogPiece(start, self._buffer[begin : begin + CHUNK], self.end)

    def _notify(self) -> None:
        for changed in self.viewers:
            changed.set()


class LogTails:
    """All followed jobs of one event loop."""

    def __init__(self, load_views: LoadViews) -> None:
        self._load_views = load_views
        self._tails: dict[int, LogTail] = {}
        self._woken = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._faults = FaultLog(logger)

    @contextlib.asynccontextmanager
    async def follow(self, job_id: int, changed: asyncio.Event) -> AsyncIterator[LogTail]:
        """Follow a job while the block runs. `changed` is set at once."""
        tail = self._tails.setdefault(job_id, LogTail(job_id))
        tail.viewers.add(changed)
        changed.set()
        self._woken.set()
        if self._task is None:
            self._task = asyncio.create_task(self._watch())
        try:
            yield tail
        finally:
            tail.viewers.discard(changed)
            if not tail.viewers:
                self._tails.pop(job_id, None)
            if not self._tails and self._task is not None:
                self._task.cancel()
                self._task = None

    async def _watch(self) -> None:
        while True:
            try:
                with self._wakes():
                    await self._follow_all()
            except Exception as error:
                self._faults.log(error, "The followed jobs can't be read; trying again", FAULT)
                await asyncio.sleep(POLL_S)

    async def _follow_all(self) -> None:
        loaded_at = -POLL_S
        while True:
            if self._woken.is_set() or monotonic() - loaded_at >= POLL_S:
                self._woken.clear()
                loaded_at = monotonic()
                await self._load_jobs()
            # Together: a host that does not answer delays only the logs that it has.
            grew = await asyncio.gather(*map(self._read, list(self._tails.values())))
            await self._pause(BUSY_S if any(grew) else QUIET_S)

    async def _read(self, tail: LogTail) -> bool:
        """A log that can't be read stops no other."""
        try:
            return await tail.read()
        except Exception as error:
            text = f"The log of job {tail.job_id} can't be read"
            self._faults.log(error, text, FAULT)
            return False

    async def _load_jobs(self) -> None:
        views = await database_sync_to_async(self._load_views)(list(self._tails))
        for job_id, view in views.items():
            if job_id in self._tails:
                self._tails[job_id].show(view)

    async def _pause(self, seconds: float) -> None:
        await asyncio.sleep(BURST_S)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds - BURST_S):
                await self._woken.wait()

    @contextlib.contextmanager
    def _wakes(self) -> Iterator[None]:
        """Set `_woken` at each change of a job. Wake-ups with a payload are readings: ignored."""
        loop = asyncio.get_running_loop()
        with Listener("live") as wakes:
            loop.add_reader(wakes.fileno(), self._hear, wakes)
            try:
                yield
            finally:
                loop.remove_reader(wakes.fileno())

    def _hear(self, wakes: Listener) -> None:
        if not all(wakes.drain()):
            self._woken.set()


_by_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, LogTails] = WeakKeyDictionary()


def tails(load_views: LoadViews) -> LogTails:
    """The followed jobs of the running event loop."""
    return _by_loop.setdefault(asyncio.get_running_loop(), LogTails(load_views))


# WebSocket of a job's page: /ws/jobs/ID/?attempt=N&from=OFFSET.
#
# Sends {"job": html, "state", "ended"} when the job changes, and {"n", "log": text, "to": offset}
# when its log grows. The page answers {"ack": n}, so a slow page skips ahead and nothing queues.


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
