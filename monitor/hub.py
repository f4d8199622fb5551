"""The live hub: one per web process, latest-only.

A thread of its own waits for the sampler's wake-up (or polls each second), reads the newest
snapshots, renders what changed, once, and tells the viewers that there is a newer frame. Each
viewer takes the newest when it is ready for it: what it missed is in it, and nothing queues.
Without viewers the thread sleeps and touches nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import select
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from time import monotonic

from django.db import close_old_connections
from django.utils import timezone

from monitor import store
from monitor.models import LatestSnapshot
from monitor.pages import history
from monitor.pages.frames import Frame
from monitor.pages.rendering import DASHBOARD, HEAD, Renderer
from monitor.readings import Snapshot
from monitor.wake import Listener

logger = logging.getLogger(__name__)
FAULT = {"kind": "LIVE_HUB_FAULT"}

Seqs = list[tuple[str, int]]
POLL_S = 1.0
# Changes of jobs come in bursts: they are shown at most this often. Readings go at once.
BURST_S = 0.1
# What is around a reading is looked at once that has been sent: both would share the interpreter.
AROUND_S = 0.2
UNREADABLE = "The database can't be read; the figures below are old."


def newest_seqs() -> Seqs:
    """What the slow poll compares: the number of each host's newest snapshot."""
    return sorted(LatestSnapshot.objects.values_list("host", "seq"))


class Viewer:
    """A connection that watches one topic."""

    __slots__ = ("changed", "topic")

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.changed = asyncio.Event()


class Hub:
    """Keeps the newest frame and wakes its viewers."""

    def __init__(
        self,
        read: Callable[[], Sequence[Snapshot]] = store.newest_all,
        seqs: Callable[[], Seqs] = newest_seqs,
    ) -> None:
        self.frame: Frame | None = None
        self._read = read
        self._seqs = seqs
        self._renderer = Renderer(history.sparks.get)
        self._viewers: set[Viewer] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()
        self._snapshots: Sequence[Snapshot] = ()
        self._seen: Seqs = []
        self._nudge_r, self._nudge_w = os.pipe()
        os.set_blocking(self._nudge_w, False)

    # From the event loop

    def start(self) -> None:
        """Start the thread, once; the first viewer does it too where the server did not."""
        with self._starting:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="live-hub", daemon=True)
                self._thread.start()

    def join(self, topic: str) -> Viewer:
        """Watch `topic` from now on; the first frame comes within milliseconds."""
        viewer = Viewer(topic)
        self._loop = asyncio.get_running_loop()
        self._viewers.add(viewer)
        if self.frame is not None and topic in self.frame.boards and len(self._viewers) > 1:
            viewer.changed.set()
        else:
            self._seen = []
            self._nudge()
        self.start()
        return viewer

    def leave(self, viewer: Viewer) -> None:
        self._viewers.discard(viewer)

    def _nudge(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.write(self._nudge_w, b"x")

    # In the thread

    def _run(self) -> None:
        self.tick(timezone.now())
        while True:
            try:
                self._idle()
                self._watch()
            except Exception:
                logger.exception("The live hub stumbled; it goes on", extra=FAULT)
                select.select([], [], [], POLL_S)

    def _idle(self) -> None:
        if not self._viewers:
            close_old_connections()
            os.read(self._nudge_r, 4096)

    def _watch(self) -> None:
        """While somebody looks: each reading at once, what is around it a moment later."""
        with Listener("live") as wakes:
            self.tick(timezone.now())
            ticked_at, is_owing = monotonic(), False
            while True:
                payloads = self._wait(wakes, AROUND_S if is_owing else POLL_S)
                if not self._viewers:
                    return
                if any(payloads):
                    self.show_readings(timezone.now())
                    is_owing = True
                    continue
                if payloads:
                    self._wait(wakes, BURST_S - (monotonic() - ticked_at))
                self.tick(timezone.now(), is_read=is_owing and not payloads)
                ticked_at, is_owing = monotonic(), False

    def _wait(self, wakes: Listener, seconds: float) -> list[bytes]:
        """Until a reading is there or the time is up; what came."""
        heard = wakes.fileno()
        ready, _, _ = select.select([heard, self._nudge_r], [], [], max(0.0, seconds))
        if self._nudge_r in ready:
            os.read(self._nudge_r, 4096)
        return wakes.drain() if heard in ready else []

    def tick(self, now: datetime, *, is_read: bool = False) -> None:
        """Show what has changed: readings, unless they are just read, and what is around them."""
        topics = self._topics()
        with self._faults_told():
            is_known = self._seen and self.frame and topics <= self.frame.boards.keys()
            is_new = not is_known or not (is_read or self._seqs() == self._seen)
            if is_new:
                self._read_for(topics)
            is_new |= self._renderer.look_around(self._snapshots, topics, now)
            if is_new:
                self.publish(self._renderer.frame(self._snapshots, topics, now))

    def show_readings(self, now: datetime) -> None:
        """Show the newest readings, with the least that this takes."""
        topics = self._topics()
        with self._faults_told():
            self._read_for(topics)
            self.publish(self._renderer.frame(self._snapshots, topics, now))

    def _topics(self) -> set[str]:
        return {viewer.topic for viewer in list(self._viewers)} or {DASHBOARD}

    def _read_for(self, topics: set[str]) -> None:
        self._snapshots = () if topics == {HEAD} else self._read()
        self._seen = sorted((s.host.name, s.seq) for s in self._snapshots)

    @contextmanager
    def _faults_told(self) -> Iterator[None]:
        """A failing database leaves the old frame."""
        try:
            close_old_connections()
            yield
        except Exception:
            self._seen = []
            self._say_unreadable()

    def _say_unreadable(self) -> None:
        if self.frame is None or self.frame.problem:
            return
        logger.exception("The live hub can't read the database", extra=FAULT)
        old = self.frame
        self.publish(Frame(old.n, old.at, old.boards, problem=UNREADABLE))

    def publish(self, frame: Frame) -> None:
        """Let all viewers know that this is the newest; called from any thread."""
        self.frame = frame
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._tell)

    def _tell(self) -> None:
        for viewer in self._viewers:
            viewer.changed.set()


hub = Hub()
