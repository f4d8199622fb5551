"""Followed jobs of this web process: one watcher for all, one reader for each log.

While a job has viewers, its log is looked at some times a second and its row at each wake-up; the
last part of the log stays in memory for all of them. Without viewers nothing is watched.
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

from monitor.wake import Listener
from scheduler.logs import CHUNK, Piece, read, size_of

logger = logging.getLogger(__name__)

KEPT = 4 * CHUNK
LOOK_S = 1.0
BUSY_S = 0.1
QUIET_S = 0.4
# Wake-ups come in bursts: jobs are looked at at most this often.
BURST_S = 0.05


@dataclass(frozen=True)
class View:
    """A followed job. Two are equal when the page shows the same; `render` makes its HTML."""

    facts: object
    state: str
    ended: bool
    attempt: int
    log: Path | None
    render: Callable[[bool], str] = field(compare=False)

    @cached_property
    def for_owner(self) -> str:
        return self.render(True)

    @cached_property
    def for_others(self) -> str:
        return self.render(False)


Look = Callable[[Iterable[int]], Mapping[int, View]]


class Tail:
    """One job. `changed` events of its viewers are set when there is something new."""

    def __init__(self, job_id: int) -> None:
        self.job_id = job_id
        self.view: View | None = None
        self.viewers: set[asyncio.Event] = set()
        self.start = self.end = 0
        self._kept = b""
        self._done = False
        # Its end was cut off, while it was followed; and how often it was begun anew for that.
        self.is_cut = False
        self.turns = 0

    def show(self, view: View) -> None:
        if view == self.view:
            return
        if self.view is None or view.log != self.view.log:
            self._begin_anew()
        elif self.is_cut and view.ended:
            # What was shown of its end was left out, and is not what is there now.
            self._begin_anew()
            self.turns += 1
        self._done = False
        self.view = view
        self._tell()

    async def read(self) -> bool:
        """Take in what the log has grown by; True when it has."""
        view = self.view
        if view is None or view.log is None or self._done:
            return False
        size = await asyncio.to_thread(size_of, view.log)
        if size == self.end:
            # Nothing is written after the end was recorded.
            self._done = view.ended
            return False
        if self.start < size < self.end and not view.ended:
            # It has reached its limit.
            self._kept, self.end, self.is_cut = self._kept[: size - self.start], size, True
            self._tell()
            return True
        # A log that became much shorter was emptied by somebody: begin anew.
        since = self.end if self.end < size else 0
        start = max(since, size - KEPT)
        piece = await asyncio.to_thread(read, view.log, start, KEPT)
        if self.view is not view:
            return False
        joined = self._kept + piece.data if start == self.end else piece.data
        self._kept = joined[-KEPT:]
        self.end = piece.end
        self.start = self.end - len(self._kept)
        self._tell()
        return True

    def _begin_anew(self) -> None:
        self.start = self.end = 0
        self._kept = b""
        self.is_cut = False

    def piece(self, offset: int) -> Piece:
        """What there is from `offset`; from later on where that is no longer at hand."""
        if self.is_cut:
            offset = min(offset, self.end)
        start = offset if self.start <= offset <= self.end else self.start
        at = start - self.start
        return Piece(start, self._kept[at : at + CHUNK], self.end)

    def _tell(self) -> None:
        for changed in self.viewers:
            changed.set()


class Tails:
    """All followed jobs of one event loop."""

    def __init__(self, look: Look) -> None:
        self._look = look
        self._tails: dict[int, Tail] = {}
        self._woken = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @contextlib.asynccontextmanager
    async def follow(self, job_id: int, changed: asyncio.Event) -> AsyncIterator[Tail]:
        """Follow a job for as long as the block runs; `changed` is set at once."""
        tail = self._tails.setdefault(job_id, Tail(job_id))
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
            except Exception:
                text = "The followed jobs can't be read; trying again"
                logger.exception(text, extra={"kind": "LOG_FOLLOW_FAULT"})
                await asyncio.sleep(LOOK_S)

    async def _follow_all(self) -> None:
        looked_at = -LOOK_S
        while True:
            if self._woken.is_set() or monotonic() - looked_at >= LOOK_S:
                self._woken.clear()
                looked_at = monotonic()
                await self._look_at_jobs()
            grew = [await tail.read() for tail in list(self._tails.values())]
            await self._pause(BUSY_S if any(grew) else QUIET_S)

    async def _look_at_jobs(self) -> None:
        views = await database_sync_to_async(self._look)(list(self._tails))
        for job_id, view in views.items():
            if job_id in self._tails:
                self._tails[job_id].show(view)

    async def _pause(self, seconds: float) -> None:
        await asyncio.sleep(BURST_S)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._woken.wait(), seconds - BURST_S)

    @contextlib.contextmanager
    def _wakes(self) -> Iterator[None]:
        """Set `_woken` at each change of a job. Readings wake too, with a payload: not for us."""
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


_by_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, Tails] = WeakKeyDictionary()


def tails(look: Look) -> Tails:
    """The one of the running event loop."""
    return _by_loop.setdefault(asyncio.get_running_loop(), Tails(look))
