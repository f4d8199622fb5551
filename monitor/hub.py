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
from collections.abc import Callable, Sequence
from datetime import datetime
from time import monotonic

from django.db import close_old_connections
from django.utils import timezone

from monitor import history, incident_badges, store
from monitor.frames import Frame
from monitor.models import LatestSnapshot
from monitor.readings import Snapshot
from monitor.rendering import DASHBOARD, HEAD, BadgeSource, Renderer
from monitor.wake import Listener

logger = logging.getLogger(__name__)
FAULT = {"kind": "LIVE_HUB_FAULT"}

Seqs = list[tuple[str, int]]
POLL_S = 1.0
# Changes of jobs come in bursts: they are shown at most this often. Readings go at once.
BURST_S = 0.1
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
        badges: BadgeSource = incident_badges.current,
    ) -> None:
        self.frame: Frame | None = None
        self._read = read
        self._seqs = seqs
        self._renderer = Renderer(history.sparks.get, badges)
        self._viewers: set[Viewer] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()
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
        """Tick at each wake-up while somebody looks."""
        with Listener("live") as wakes:
            while self._viewers:
                began = monotonic()
                self.tick(timezone.now())
                payloads = self._wait(wakes, POLL_S)
                if payloads and not any(payloads):
                    self._wait(wakes, BURST_S - (monotonic() - began))

    def _wait(self, wakes: Listener, seconds: float) -> list[bytes]:
        """Until a reading is there or the time is up; what came."""
        heard = wakes.fileno()
        ready, _, _ = select.select([heard, self._nudge_r], [], [], max(0.0, seconds))
        if self._nudge_r in ready:
            os.read(self._nudge_r, 4096)
        if heard not in ready:
            return []
        payloads = wakes.drain()
        if payloads:
            self._seen = []
        return payloads

    def tick(self, now: datetime) -> None:
        """Read, render what changed, tell the viewers. A failing database leaves the old frame."""
        try:
            close_old_connections()
            seen = self._seqs()
            if seen == self._seen and self.frame and not self.frame.problem:
                return
            self._seen = seen
            topics = {viewer.topic for viewer in list(self._viewers)} or {DASHBOARD}
            snapshots = () if topics == {HEAD} else self._read()
            self.publish(self._renderer.frame(snapshots, topics, now))
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
