"""The WebSocket of a live page: its limits, its messages, and how it ends.

Each consumer serves its feed with `serve_page`. A page sends {"ack": n} and {"whole": true} only.
Consumers are plain ASGI applications: Channels' consumer class adds a thread hop for each message,
which is most of the cost of 500 viewers.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from importlib import import_module
from time import monotonic
from typing import Any, Protocol
from urllib.parse import parse_qs
from weakref import WeakKeyDictionary

from channels.auth import get_user
from django.conf import settings
from django.db import DatabaseError
from django.utils import timezone
from msgspec import Struct

from monitor.facts import input_rules
from monitor.pages.live.frames import regions
from monitor.pages.live.hub import Hub, Viewer, hub
from monitor.pages.live.rendering import DASHBOARD, GPU_PREFIX, HEAD, PROCESSES, REGION_PREFIX
from monitor.runtime.rows.item_isolation import FaultLog
from monitor.runtime.rows.wakeups import Listener

logger = logging.getLogger(__name__)
FAULT = {"kind": "LIVE_SOCKET_FAULT"}

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
                _faults.log(error, "Open sockets can't hear of logins that end", FAULT)
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
        _faults.log(error, "A live page's feed failed; its socket is closed", FAULT)
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
