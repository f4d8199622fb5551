"""The live hub, one per web process, and the WebSockets of live pages that it feeds.

The thread of the hub waits for the sampler's wake-up (or polls each second), reads the newest
snapshots, renders the changes once for all viewers, and wakes them. Each viewer takes the newest
frame when it is ready: a frame contains all missed changes, so nothing queues. Without viewers the
thread sleeps.

Each consumer serves its feed with `serve_page`. A page sends {"ack": n} and {"whole": true} only.
Consumers are plain ASGI applications: Channels' consumer class adds a thread hop for each message,
which is most of the cost of 500 viewers.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import select
import threading
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from datetime import datetime
from importlib import import_module
from time import monotonic
from typing import Any, Protocol
from urllib.parse import parse_qs
from weakref import WeakKeyDictionary

from channels.auth import get_user
from django.conf import settings
from django.db import DatabaseError, close_old_connections
from django.utils import timezone
from msgspec import Struct

from monitor.facts import input_rules
from monitor.facts.readings import Snapshot
from monitor.gpus.rows import snapshot as snapshots
from monitor.gpus.rows.snapshot import Bookings
from monitor.models import LatestSnapshot
from monitor.pages.frames import Frame, regions
from monitor.pages.rendering import (
    DASHBOARD,
    GPU_PREFIX,
    HEAD,
    PROCESSES,
    REGION_PREFIX,
    Renderer,
    has_figures,
)
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


SOCKET_FAULT = {"kind": "LIVE_SOCKET_FAULT"}

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]

# Close codes of an application are 4000 to 4999. After those below 4400 a page connects again.
MALFORMED = 4007
FLOODING = 4008
FAILED = 4011
SIGNED_OUT = 4401
TOO_MANY_SOCKETS = 4429

# A page acknowledges at most 40 pieces of a log in a second.
MESSAGES_AT_ONCE = 100
MESSAGES_PER_S = 50.0
LONGEST_MESSAGE = 200
# A page has one or two. Each browser tab is a page.
SOCKETS_PER_USER = 60
# How often an open socket checks that its user may still see the page, in case that the wake-up
# LOGINS is lost.
RECHECK_S = 60.0
# The same for a socket that passes on input: none is passed on after an older check.
INPUT_RECHECK_S = 2.0
# The wake-up after a login has ended: a session, a token or a user. Its payload is the user's id.
LOGINS = "logins"


class Closed(Exception):
    """The server closes the socket with this close code."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class BrowserLeft(Exception):
    """A message could not be sent. ASGI servers raise different errors for this."""


class PageMessage(Struct, frozen=True):
    """`ack`: the page has shown all up to this number. `whole`: it needs the complete state."""

    ack: int = 0
    whole: bool = False


def page_message(text: str | None) -> PageMessage:
    """Parse a message of a page. Raises Closed if it is malformed."""
    if not text or len(text) > LONGEST_MESSAGE:
        raise Closed(MALFORMED)
    try:
        fields = input_rules.parse_json(text)
    except ValueError:
        raise Closed(MALFORMED) from None
    if not isinstance(fields, dict):
        raise Closed(MALFORMED)
    ack, whole = fields.get("ack", 0), fields.get("whole", False)
    if type(ack) is not int or type(whole) is not bool:
        raise Closed(MALFORMED)
    return PageMessage(ack, whole)


class MessageBudget:
    """A token bucket: `at_once` messages in a burst, `per_second` in the long run."""

    def __init__(self, at_once: float, per_second: float, now: float) -> None:
        self._most = self._left = at_once
        self._per_second = per_second
        self._at = now

    def spend(self, now: float) -> bool:
        """Count one message. False: the budget is used up."""
        self._left = min(self._most, self._left + (now - self._at) * self._per_second)
        self._at = now
        self._left -= 1
        return self._left >= 0


class OpenSockets:
    """How many sockets each user has in this process."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._open: Counter[object] = Counter()

    @contextlib.contextmanager
    def one_more(self, user: object) -> Iterator[bool]:
        """Count a socket while the block runs. Yields False if the user already has `limit`."""
        if self._open[user] >= self._limit:
            yield False
            return
        self._open[user] += 1
        try:
            yield True
        finally:
            self._open[user] -= 1
            if not self._open[user]:
                del self._open[user]


class Feed(Protocol):
    async def run(self) -> None: ...

    def hear(self, text: str | None) -> None: ...


_faults = FaultLog(logger)
open_sockets = OpenSockets(SOCKETS_PER_USER)


def unless_left(send: Send) -> Send:
    """`send` that raises BrowserLeft when the browser has left."""

    async def checked(event: dict[str, Any]) -> None:
        try:
            await send(event)
        except Exception as error:
            logger.debug("A browser left while a message was sent", exc_info=True)
            raise BrowserLeft from error

    return checked


async def session_user(scope: Scope) -> Any:
    """The user of the socket's session as it is now; anonymous after a logout."""
    engine = import_module(settings.SESSION_ENGINE)
    return await get_user({"session": engine.SessionStore(scope["session"].session_key)})


async def is_same_user(scope: Scope) -> bool:
    """Whether the session still belongs to the active user who opened the socket."""
    user = await session_user(scope)
    return bool(user.is_authenticated and user.pk == scope["user"].pk)


class LoginCheck:
    """Whether the user of an open socket may still use it.

    Checked at first, every `every_s`, and when a login of the user has ended. Raises Closed.
    """

    def __init__(self, is_allowed: Callable[[], Awaitable[bool]], every_s: float) -> None:
        self._is_allowed = is_allowed
        self._every_s = every_s
        self._changed = asyncio.Event()
        # A login may have ended while the socket was opened, before the wake-ups are heard.
        self._changed.set()
        self._changes, self._checked, self._checked_at = 1, 0, 0.0

    def login_ended(self) -> None:
        self._changes += 1
        self._changed.set()

    async def watch(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._every_s):
                    await self._changed.wait()
            self._changed.clear()
            await self._check()

    async def before_input(self) -> None:
        """Input is passed on after this returns. Most calls compare two numbers."""
        is_old = monotonic() - self._checked_at > self._every_s
        if is_old or self._checked != self._changes:
            await self._check()

    async def _check(self) -> None:
        changes = self._changes
        try:
            if not await self._is_allowed():
                raise Closed(SIGNED_OUT)
        except DatabaseError:
            # Without the database the page shows nothing new either, and no login ends.
            pass
        self._checked, self._checked_at = changes, monotonic()


class LoginChecks:
    """The open sockets of one event loop, which hears LOGINS while there are some."""

    def __init__(self) -> None:
        self._checks: dict[int, set[LoginCheck]] = {}
        self._wakes: Listener | None = None

    def add(self, user_id: int, check: LoginCheck) -> None:
        self._checks.setdefault(user_id, set()).add(check)
        if self._wakes is None:
            try:
                self._wakes = Listener(LOGINS)
            except OSError as error:
                # The regular checks remain.
                _faults.log(error, "Open sockets can't hear of logins that end", SOCKET_FAULT)
            else:
                loop = asyncio.get_running_loop()
                loop.add_reader(self._wakes.fileno(), self._hear, self._wakes)

    def remove(self, user_id: int, check: LoginCheck) -> None:
        self._checks[user_id].discard(check)
        if not self._checks[user_id]:
            del self._checks[user_id]
        if not self._checks and self._wakes is not None:
            asyncio.get_running_loop().remove_reader(self._wakes.fileno())
            self._wakes.close()
            self._wakes = None

    def _hear(self, wakes: Listener) -> None:
        for payload in set(wakes.drain()):
            if payload.isdigit():
                for check in self._checks.get(int(payload), ()):
                    check.login_ended()


_checks_by_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, LoginChecks] = WeakKeyDictionary()


@contextlib.contextmanager
def login_check(
    user_id: int, is_allowed: Callable[[], Awaitable[bool]], every_s: float
) -> Iterator[LoginCheck]:
    """The check of a socket while the block runs; it hears when a login of the user ends."""
    checks = _checks_by_loop.setdefault(asyncio.get_running_loop(), LoginChecks())
    check = LoginCheck(is_allowed, every_s)
    checks.add(user_id, check)
    try:
        yield check
    finally:
        checks.remove(user_id, check)


async def serve_page(
    scope: Scope,
    receive: Receive,
    send: Send,
    open_feed: Callable[[Send], AbstractAsyncContextManager[Feed]],
    is_allowed: Callable[[], Awaitable[bool]],
) -> None:
    """Serve an accepted socket, unless its user already has SOCKETS_PER_USER."""
    with open_sockets.one_more(scope["user"].pk) as is_within_limit:
        if not is_within_limit:
            await send({"type": "websocket.close", "code": TOO_MANY_SOCKETS})
            return
        with login_check(scope["user"].pk, is_allowed, RECHECK_S) as login:
            async with open_feed(unless_left(send)) as feed:
                await serve_feed(feed, receive, send, login)


async def serve_feed(feed: Feed, receive: Receive, send: Send, login: LoginCheck) -> None:
    """Serve one page until it leaves, its user loses access, it misbehaves, or the feed fails.

    A feed that fails is logged and its socket closed, so that the page connects again.
    """
    tasks = {
        asyncio.create_task(feed.run()),
        asyncio.create_task(_listen(feed, receive)),
        asyncio.create_task(login.watch()),
    }
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for error in filter(None, [task.exception() for task in done]):
        await _end(send, error)


async def _end(send: Send, error: BaseException) -> None:
    """Close the socket with the error's close code; log an unexpected error."""
    if isinstance(error, BrowserLeft):
        return
    if not isinstance(error, Closed):
        _faults.log(error, "A live page's feed failed; its socket is closed", SOCKET_FAULT)
    code = error.code if isinstance(error, Closed) else FAILED
    await send({"type": "websocket.close", "code": code})


async def _listen(feed: Feed, receive: Receive) -> None:
    budget = MessageBudget(MESSAGES_AT_ONCE, MESSAGES_PER_S, monotonic())
    while (event := await receive())["type"] != "websocket.disconnect":
        if not budget.spend(monotonic()):
            raise Closed(FLOODING)
        feed.hear(event.get("text"))


# WebSocket of the live pages: /ws/live/?on=dashboard, processes, gpu:UUID, region:NAME or head.


# Unacknowledged frames at a time. The page acknowledges every fourth frame, so a slow page holds
# few frames in the server's buffers and then gets the newest.
WINDOW = 8
# The complete state is large: a page gets it at most once in this time.
WHOLE_EVERY_S = 1.0
# Sent after this time without another message. A page without messages for 4.5 s reports it.
BEAT_S = 1.5
BEAT = '{"beat":1}'
LONGEST_TOPIC = 110


async def live(scope: Scope, receive: Receive, send: Send) -> None:
    """Feed one page until it leaves or its user loses access."""
    await receive()
    await send({"type": "websocket.accept"})
    if not scope["user"].is_authenticated:
        await send({"type": "websocket.close", "code": SIGNED_OUT})
        return

    @asynccontextmanager
    async def open_feed(send: Send) -> AsyncIterator[LiveFeed]:
        feed = LiveFeed(hub, _topic(scope), send)
        try:
            yield feed
        finally:
            feed.close()

    await serve_page(scope, receive, send, open_feed, lambda: is_same_user(scope))


class LiveFeed:
    """Sends one viewer the newest frame as soon as the viewer can take it."""

    def __init__(self, hub: Hub, topic: str, send: Send) -> None:
        self._hub = hub
        self._send = send
        self._viewer: Viewer = hub.join(topic)
        self._sent = 0
        self._unacknowledged: deque[int] = deque()
        self._whole_at = float("-inf")
        self._whole_timer: asyncio.TimerHandle | None = None
        self._sent_at = monotonic()
        self._is_beat_due = False
        self._beat_timer = asyncio.get_running_loop().call_later(BEAT_S, self._check_beat)

    async def run(self) -> None:
        while True:
            await self._viewer.changed.wait()
            self._viewer.changed.clear()
            text = self._next()
            if text is not None:
                await self._send({"type": "websocket.send", "text": text})
                self._sent_at = monotonic()

    def _next(self) -> str | None:
        """The next message. None: nothing is new for this viewer, or the viewer is too slow."""
        is_beat_due, self._is_beat_due = self._is_beat_due, False
        if len(self._unacknowledged) >= WINDOW:
            return None
        return self._newest() or (BEAT if is_beat_due else None)

    def _check_beat(self) -> None:
        """Wake the feed if nothing was sent for BEAT_S. One timer costs less than one per frame."""
        left = self._sent_at + BEAT_S - monotonic()
        if left <= 0:
            self._is_beat_due, left = True, BEAT_S
            self._viewer.changed.set()
        self._beat_timer = asyncio.get_running_loop().call_later(left, self._check_beat)

    def _newest(self) -> str | None:
        """The part of the newest frame that this viewer lacks. Marks the frame as sent."""
        frame = self._hub.frame
        if frame is None or (frame.n == self._sent and not frame.problem):
            return None
        text = frame.message(self._viewer.topic, self._sent, timezone.now().timestamp())
        if text is not None and self._viewer.topic in frame.boards:
            self._sent = frame.n
            self._unacknowledged.append(frame.n)
        return text

    def hear(self, text: str | None) -> None:
        """{"ack": n}: the page shows frame n. {"whole": true}: it needs the complete state."""
        message = page_message(text)
        if message.whole and self._whole_timer is None:
            wait_s = max(0.0, self._whole_at + WHOLE_EVERY_S - monotonic())
            if wait_s:
                loop = asyncio.get_running_loop()
                self._whole_timer = loop.call_later(wait_s, self._send_whole)
            else:
                self._send_whole()
        self._acknowledge(message.ack)

    def _send_whole(self) -> None:
        self._whole_at, self._whole_timer = monotonic(), None
        self._sent = 0
        self._unacknowledged.clear()
        self._viewer.changed.set()

    def _acknowledge(self, n: int) -> None:
        was_full = len(self._unacknowledged) >= WINDOW
        while self._unacknowledged and self._unacknowledged[0] <= n:
            self._unacknowledged.popleft()
        if was_full and len(self._unacknowledged) < WINDOW:
            self._viewer.changed.set()

    def close(self) -> None:
        self._beat_timer.cancel()
        if self._whole_timer is not None:
            self._whole_timer.cancel()
        self._hub.leave(self._viewer)


def _topic(scope: Scope) -> str:
    query = parse_qs(scope.get("query_string", b"").decode("ascii", "replace"))
    topic = query.get("on", [""])[0]
    is_gpu = topic.startswith(GPU_PREFIX) and len(topic) < LONGEST_TOPIC
    alone = {f"{REGION_PREFIX}{region.name}" for region in regions()}
    return topic if is_gpu or topic in (PROCESSES, HEAD) or topic in alone else DASHBOARD
