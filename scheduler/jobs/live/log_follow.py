"""Followed jobs of this web process: one watcher for all jobs, one reader for each log.

While a job has viewers, its log is checked several times a second and its row at each wake-up. The
end of the log stays in memory for all viewers. Without viewers nothing is read.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from time import monotonic
from weakref import WeakKeyDictionary

from channels.db import database_sync_to_async

from monitor.runtime.rows.item_isolation import FaultLog
from monitor.runtime.rows.wakeups import Listener
from scheduler.execution.hosts.probes import RemoteLog, Unreachable
from scheduler.jobs.lifecycle.probes import CHUNK, LogPiece, read, size_of

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
