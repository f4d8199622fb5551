"""The live hub: one per web process. It keeps only the newest frame.

Its thread waits for the sampler's wake-up (or polls each second), reads the newest snapshots,
renders the changes once for all viewers, and wakes them. Each viewer takes the newest frame when it
is ready: a frame contains all missed changes, so nothing queues. Without viewers the thread sleeps.
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

from django.db import DatabaseError, close_old_connections
from django.utils import timezone

from monitor.facts.readings import Snapshot
from monitor.gpus.snapshot import rows as snapshots
from monitor.gpus.snapshot.rows import Bookings
from monitor.models import LatestSnapshot
from monitor.pages.live.frames import Frame
from monitor.pages.live.rendering import DASHBOARD, Renderer, has_figures
from monitor.runtime.rows.item_isolation import FaultLog
from monitor.runtime.rows.wakeups import Listener

logger = logging.getLogger(__name__)
FAULT = {"kind": "LIVE_HUB_FAULT"}

Seqs = list[tuple[str, int]]
POLL_S = 1.0
# A change of jobs is shown at once, and those that follow within this time with the next readings,
# because changes come in bursts. Readings are shown at once, those of many hosts together.
BURST_S = 1.0
READINGS_EVERY_S = 0.15
# Regions are loaded this long after a reading was sent, because both share the interpreter, and are
# sent with the next reading, because each frame costs the browser a style, a layout and a paint.
REGIONS_DELAY_S = 0.2
REGIONS_EVERY_S = 1.0
UNREADABLE = "The database can't be read; the figures below are old."
UNRENDERED = "This page can't be updated because of a fault; the figures below are old."


def newest_seqs() -> Seqs:
    """The number of each host's newest snapshot; the slow poll compares these."""
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
        read: Callable[[], Sequence[Snapshot]] = snapshots.newest_all,
        seqs: Callable[[], Seqs] = newest_seqs,
        bookings: Callable[[], Bookings] = snapshots.bookings,
    ) -> None:
        self.frame: Frame | None = None
        self._read = read
        self._seqs = seqs
        self._renderer = Renderer(bookings)
        self._viewers: set[Viewer] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()
        self._snapshots: Sequence[Snapshot] = ()
        self._shown_seqs: Seqs = []
        # Whether regions were loaded that no frame has yet.
        self._is_due = False
        self._faults = FaultLog(logger)
        self._nudge_r, self._nudge_w = os.pipe()
        os.set_blocking(self._nudge_w, False)

    # From the event loop

    def start(self) -> None:
        """Start the thread, once. The first viewer also calls this."""
        with self._starting:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="live-hub", daemon=True)
                self._thread.start()

    def join(self, topic: str) -> Viewer:
        """Watch `topic`. The first frame arrives within milliseconds."""
        viewer = Viewer(topic)
        self._loop = asyncio.get_running_loop()
        self._viewers.add(viewer)
        if self.frame is not None and self.frame.problem:
            viewer.changed.set()
        if self.frame is not None and topic in self.frame.boards and len(self._viewers) > 1:
            viewer.changed.set()
        else:
            self._shown_seqs = []
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
                logger.exception("The live hub failed; it continues", extra=FAULT)
                select.select([], [], [], POLL_S)

    def _idle(self) -> None:
        if not self._viewers:
            close_old_connections()
            os.read(self._nudge_r, 4096)

    def _watch(self) -> None:
        """While there are viewers: show each reading at once, and the regions with the next one.

        The first of several changes of jobs is shown without waiting for a reading.
        """
        with Listener("live") as wakes:
            self.tick(timezone.now())
            ticked_at = shown_at = monotonic()
            changed_at = float("-inf")
            # When regions are loaded; None: no reading was shown since then.
            regions_at: float | None = None
            while True:
                until = monotonic() + POLL_S if regions_at is None else regions_at
                payloads = self._wait(wakes, until - monotonic())
                if not self._viewers:
                    return
                has_readings = any(payloads)
                if has_readings:
                    payloads += self._collect(wakes, shown_at + READINGS_EVERY_S)
                    self.show_readings(timezone.now())
                    shown_at = monotonic()
                    due = shown_at + REGIONS_DELAY_S
                    if all(payloads):
                        # Readings alone, of many hosts all the time: regions take longer.
                        due = max(due, ticked_at + REGIONS_EVERY_S)
                    regions_at = due if regions_at is None else min(regions_at, due)
                    if monotonic() < regions_at:
                        continue
                elif payloads and monotonic() < changed_at + BURST_S:
                    due = changed_at + BURST_S
                    regions_at = due if regions_at is None else min(regions_at, due)
                    continue
                elif payloads:
                    changed_at = monotonic()
                is_read = regions_at is not None and (has_readings or not payloads)
                self.tick(timezone.now(), is_read=is_read)
                ticked_at, regions_at = monotonic(), None

    def _collect(self, wakes: Listener, until: float) -> list[bytes]:
        """Further wake-ups until then, to show the readings of several hosts together."""
        payloads: list[bytes] = []
        while (left := until - monotonic()) > 0:
            payloads += self._wait(wakes, left)
        return payloads

    def _wait(self, wakes: Listener, seconds: float) -> list[bytes]:
        """Wait for a wake-up or until the time is over. Returns the payloads of the wake-ups."""
        wake_fd = wakes.fileno()
        ready, _, _ = select.select([wake_fd, self._nudge_r], [], [], max(0.0, seconds))
        if self._nudge_r in ready:
            os.read(self._nudge_r, 4096)
        return wakes.drain() if wake_fd in ready else []

    def tick(self, now: datetime, *, is_read: bool = False) -> None:
        """Show changed readings and regions.

        is_read: readings were shown a moment ago; changed regions wait for the next ones.
        """
        topics = self._topics()
        with self._faults_reported():
            is_known = self._shown_seqs and self.frame and topics <= self.frame.boards.keys()
            is_new = not is_known or not (is_read or self._seqs() == self._shown_seqs)
            if is_new:
                self._read_for(topics)
            self._is_due |= self._renderer.load_regions(topics, now)
            if is_new or (self._is_due and not is_read):
                self.publish(self._renderer.frame(self._snapshots, topics, now))

    def show_readings(self, now: datetime) -> None:
        """Show the newest readings, with the regions that were loaded last."""
        topics = self._topics()
        with self._faults_reported():
            self._read_for(topics)
            self.publish(self._renderer.frame(self._snapshots, topics, now))

    def _topics(self) -> set[str]:
        return {viewer.topic for viewer in list(self._viewers)} or {DASHBOARD}

    def _read_for(self, topics: set[str]) -> None:
        self._snapshots = self._read() if any(map(has_figures, topics)) else ()
        self._shown_seqs = sorted((s.host.name, s.seq) for s in self._snapshots)

    @contextmanager
    def _faults_reported(self) -> Iterator[None]:
        """Log a fault and show it beside the old frame."""
        try:
            close_old_connections()
            yield
        except Exception as error:
            self._shown_seqs = []
            self._report_fault(error)

    def _report_fault(self, error: Exception) -> None:
        is_database = isinstance(error, DatabaseError)
        text = "can't read the database" if is_database else "can't make a frame"
        self._faults.log(error, f"The live hub {text}", FAULT)
        problem = UNREADABLE if is_database else UNRENDERED
        old = self.frame or Frame(0, None, {})
        if old.problem != problem:
            self.publish(Frame(old.n, old.at, old.boards, problem=problem))

    def publish(self, frame: Frame) -> None:
        """Make this the newest frame and wake all viewers. Called from any thread."""
        self.frame = frame
        self._is_due = False
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._wake_viewers)

    def _wake_viewers(self) -> None:
        for viewer in self._viewers:
            viewer.changed.set()


hub = Hub()
