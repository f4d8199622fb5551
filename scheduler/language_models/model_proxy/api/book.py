"""The requests of this host's endpoint: who waits, who runs, and the counters for the rows.

Lives in one event loop. Rows are read and written in a thread beside it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from itertools import count
from math import ceil
from typing import TypeVar

from django.db import DatabaseError, connections
from django.utils import timezone
from msgspec import Struct
from msgspec.structs import replace

from monitor.runtime.rows.item_isolation import FaultLog
from monitor.runtime.rows.wakeups import Listener
from scheduler.facts.language_models import Instance, Request, Service, Wait
from scheduler.language_models.model_proxy import rows
from scheduler.language_models.model_proxy.policy import Caller, Refused, UnknownTokens
from scheduler.language_models.model_proxy.rows import Counts, Situation, SituationReader
from scheduler.language_models.model_services import steps
from scheduler.language_models.prompts.policy import Router
from scheduler.language_models.prompts.rows import Use

# A demand for an instance counts for a minute.
BOOT_AGAIN_S = 15.0
# An instance that failed gets no request for this time; its health is checked meanwhile.
SUSPECT_S = 2.0
# A server that fails with this many requests, without an answer between them, is replaced. One
# request of a usual client is at most three, as clients repeat it twice.
FAULTS_IN_ROW = 5


class Place(Struct):
    """A request's way: it waits, an instance takes it, it ends."""

    request: Request
    taken: asyncio.Future[Instance]
    began_s: float
    placed_s: float | None = None
    first_s: float | None = None
    is_cold: bool = False
    is_warm: bool = False
    is_counted: bool = False


class Board:
    """`changed` is called when rows should be written soon."""

    def __init__(self, changed: Callable[[], None] = lambda: None) -> None:
        self.situation = Situation()
        self._router = Router()
        self._changed = changed
        self._places: dict[object, Place] = {}
        self._numbers = count(1)
        self._counts: dict[int, Counts] = {}
        self._uses: list[Use] = []
        self._booted: dict[int, float] = {}
        self._boots: set[int] = set()
        self._suspects: dict[int, float] = {}
        # By instance: requests that failed since its last answer.
        self._faults: Counter[int] = Counter()
        self._failing: dict[int, str] = {}
        # Requests of each user that came, and those of them that the rows of use count.
        self._came: Counter[str] = Counter()
        self.written_of: Counter[str] = Counter()

    def update(self, situation: Situation) -> None:
        self.situation = situation
        self._apply()

    def fault(self, place: Place, how: str) -> None:
        """The instance failed with the request. After FAULTS_IN_ROW it is to be replaced.

        how: such as "its server answered 500".
        """
        failed = place.taken.result().id
        self._count(failed).failures += 1
        self._faults[failed] += 1
        if self._faults[failed] >= FAULTS_IN_ROW:
            self._failing[failed] = f"{self._faults.pop(failed)} requests in a row failed: {how}."

    def suspect(self, place: Place, how: str) -> None:
        """The same, and it gets no request for a while."""
        self.fault(place, how)
        self._suspects[place.taken.result().id] = time.monotonic() + SUSPECT_S
        self._apply()

    def take_failing(self) -> dict[int, str]:
        """Instances to replace, with the reason, once; give them back with `restore_failing`."""
        failing, self._failing = self._failing, {}
        return failing

    def restore_failing(self, failing: dict[int, str]) -> None:
        self._failing = failing | self._failing

    def _apply(self) -> None:
        now_s = time.monotonic()
        self._suspects = {id_: until for id_, until in self._suspects.items() if until > now_s}
        services = [_without(service, self._suspects) for service in self.situation.services]
        open_ = {instance.id for service in services for instance in service.instances}
        self._faults = Counter({id_: n for id_, n in self._faults.items() if id_ in open_})
        self._router.update(services, self.situation.deficits)
        self._start()

    def service(self, name: str) -> Service | None:
        """By its own name; `find` knows the other ones."""
        return self._router.service(name)

    def find(self, name: str) -> Service | None:
        """The service that a client means."""
        service = self.situation.names.find(name)
        return None if service is None else self._router.service(service)

    def waiting_owners(self) -> set[str]:
        return {request.owner for request in self._router.waiting()}

    def waiting_of(self, owner: str) -> int:
        return self._router.waiting_of(owner)

    def came_since(self, owner: str, written: int) -> int:
        """Requests of the user that the rows did not count when they counted `written`."""
        return self._came[owner] - written

    @contextmanager
    def enter(self, service: str, owner: str, priority: int, key: object = None) -> Iterator[Place]:
        """Queue a request; it leaves with the context, whatever happens."""
        now_s = time.monotonic()
        request = Request(
            key=next(self._numbers) if key is None else key,
            service=service,
            owner=owner,
            priority=priority,
            since_s=now_s,
        )
        place = Place(request, asyncio.get_running_loop().create_future(), now_s)
        self._places[request.key] = place
        self._came[owner] += 1
        self._router.add(request)
        self._start()
        try:
            yield place
        finally:
            self._leave(place)

    def retry(self, place: Place, how: str) -> None:
        """The instance of the request failed; the request waits again."""
        failed = place.taken.result()
        self.suspect(place, how)
        place.taken = asyncio.get_running_loop().create_future()
        place.request = self._router.retry(place.request, failed)
        self._start()

    def answered(self, place: Place, tokens: tuple[int, int], *, estimated: bool) -> None:
        """Count an answered request, or one whose client left in the middle."""
        place.is_counted = True
        instance = place.taken.result().id
        self._count(instance).completed += 1
        self._faults.pop(instance, None)
        now_s = time.monotonic()
        self._uses.append(
            Use(
                model=place.request.service,
                owner=place.request.owner,
                warm=place.is_warm,
                cold=place.is_cold and not place.is_warm,
                estimated=estimated,
                prompt_tokens=tokens[0],
                completion_tokens=tokens[1],
                waited_s=(place.placed_s or now_s) - place.began_s,
                first_token_s=(place.first_s or now_s) - place.began_s,
                answer_s=now_s - place.began_s,
            )
        )

    def withdraw(self, place: Place) -> None:
        """Count nothing: another host answers the request."""
        place.is_counted = True
        self._came[place.request.owner] -= 1

    def failed(self, place: Place) -> None:
        """Count a request without an answer."""
        place.is_counted = True
        self._uses.append(Use(model=place.request.service, owner=place.request.owner, failed=True))

    def wait_of(self, place: Place) -> Wait | None:
        """Why the request waits; None: an instance has it."""
        return self._router.wait(place.request, time.monotonic())

    def take_changes(self) -> tuple[dict[int, Counts], list[Use], list[int]]:
        """Changes to write, once; give them back with `restore` if that fails."""
        self._ask_for_boots()
        in_flight = self._router.in_flight()
        changed, self._counts = self._counts, {}
        for id_, counts in changed.items():
            counts.in_flight = in_flight.get(id_, 0)
        uses, self._uses = self._uses, []
        self.written_of.update(use.owner for use in uses)
        boots, self._boots = sorted(self._boots), set()
        return changed, uses, boots

    def restore(self, changed: dict[int, Counts], uses: list[Use], boots: list[int]) -> None:
        for id_, counts in changed.items():
            mine = self._count(id_)
            mine.completed += counts.completed
            mine.failures += counts.failures
        self._uses = uses + self._uses
        self.written_of.subtract(use.owner for use in uses)
        self._boots |= set(boots)

    def _leave(self, place: Place) -> None:
        if not place.is_counted:
            self.failed(place)
        self._router.remove(place.request, time.monotonic())
        self._places.pop(place.request.key, None)
        if place.taken.done() and not place.taken.cancelled():
            self._count(place.taken.result().id)
        place.taken.cancel()
        self._start()

    def _start(self) -> None:
        """Let instances take what they can."""
        now_s = time.monotonic()
        starts, boots = self._router.start(now_s)
        for start in starts:
            place = self._places[start.request.key]
            place.placed_s = now_s
            self._count(start.instance.id)
            with suppress(asyncio.InvalidStateError):
                place.taken.set_result(start.instance)
        for service in boots:
            self._want(service, now_s)
        for place in self._places.values():
            if not (place.taken.done() or place.is_warm):
                self._note_boot(place)

    def _note_boot(self, place: Place) -> None:
        """Whether a request waits for a boot, or only for its model to wake."""
        service = self._router.service(place.request.service)
        if service is not None and not service.ready:
            place.is_cold = True
            place.is_warm = any(instance.wakes for instance in service.instances)

    def _ask_for_boots(self) -> None:
        """A demand is repeated while requests wait for an instance."""
        now_s = time.monotonic()
        for name in {request.service for request in self._router.waiting()}:
            service = self._router.service(name)
            if service is not None and not service.ready:
                self._want(service.id, now_s)

    def _want(self, service: int, now_s: float) -> None:
        if now_s - self._booted.get(service, -BOOT_AGAIN_S) >= BOOT_AGAIN_S:
            self._booted[service] = now_s
            self._boots.add(service)
            self._changed()

    def _count(self, instance: int) -> Counts:
        """The counters of an instance, which are to be written."""
        self._changed()
        return self._counts.setdefault(instance, Counts())


def _without(service: Service, suspects: Collection[int]) -> Service:
    """The service as if these instances were not ready."""
    if not any(instance.id in suspects for instance in service.instances):
        return service
    instances = (
        replace(instance, is_ready=False) if instance.id in suspects else instance
        for instance in service.instances
    )
    return replace(service, instances=tuple(instances))


# Keeps the board and the rows equal: reads services, writes counters, a few times a second.


T = TypeVar("T")
# The rows are read this often, and at once when a wake-up comes, but not more often than the pause.
READ_EVERY_S = 0.5
PAUSE_S = 0.2
# An unknown name of a model reads them before it is refused, at most this often.
UNKNOWN_S = 0.2
CALLER_S = 3.0
MOST_CALLERS = 5000
FAULT = {"kind": "MODEL_PROXY_FAULT"}
WAKE = "models"
logger = logging.getLogger(__name__)


class Database:
    """A thread with a connection of its own."""

    def __init__(self, name: str) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix=name)

    async def __call__(self, action: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, self._run, action)

    def _run(self, action: Callable[[], T]) -> T:
        try:
            return action()
        except DatabaseError:
            connections.close_all()
            raise

    def close(self) -> None:
        self._pool.submit(connections.close_all)
        self._pool.shutdown(wait=False)


class Book:
    """`run()` until it is cancelled."""

    def __init__(self, host: str, address: str = "") -> None:
        self.host, self._address = host, address
        self._stir = asyncio.Event()
        self.board = Board(self._stir.set)
        self.database = Database("book")
        self._auth = Database("auth")
        self._reader = SituationReader(host)
        self._faults = FaultLog(logger)
        # Users of tokens that were valid, until when they are.
        self._callers: dict[str, tuple[float, Caller]] = {}
        self._unknown = UnknownTokens()
        # Monotonic time of the next read; a wake-up makes it due at once.
        self._reads_t = 0.0
        self._read_t = -UNKNOWN_S
        self._reading: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Read once, then keep on reading and writing. Counters of a killed endpoint are reset."""
        loop = asyncio.get_running_loop()
        with Listener(WAKE) as heard:
            loop.add_reader(heard.fileno(), self._hear, heard)
            try:
                await self._attempt(lambda: rows.begin(self.host, self._address))
                while True:
                    try:
                        await self.sync()
                    except Exception as error:
                        self._faults.log(error, "A pass of the endpoint for models failed", FAULT)
                    with suppress(TimeoutError):
                        async with asyncio.timeout(READ_EVERY_S):
                            await self._stir.wait()
                    await asyncio.sleep(PAUSE_S)
            finally:
                loop.remove_reader(heard.fileno())

    async def sync(self) -> None:
        """One pass: write what has changed, then read what is due.

        The counters change with each request, the services seldom.
        """
        self._stir.clear()
        changes = self.board.take_changes()
        if any(changes) and FAILED is await self._attempt(
            lambda: rows.write(*changes, timezone.now())
        ):
            self.board.restore(*changes)
        await self._replace_failing()
        if time.monotonic() < self._reads_t:
            return
        await self._read()

    async def look_again(self) -> None:
        """Read the services by a read that begins now or later; all callers share it."""
        if self._reading is None:
            self._reading = asyncio.create_task(self._read_soon())
        await asyncio.shield(self._reading)

    async def _read_soon(self) -> None:
        await asyncio.sleep(self._read_t + UNKNOWN_S - time.monotonic())
        # Later callers need another read.
        self._reading = None
        await self._read()

    async def _read(self) -> None:
        self._read_t = time.monotonic()
        self._reads_t = self._read_t + READ_EVERY_S
        owners = self.board.waiting_owners()
        situation = await self._attempt(lambda: self._reader.read(owners, timezone.now()))
        if isinstance(situation, rows.Situation):
            self.board.update(situation)

    async def _replace_failing(self) -> None:
        for id_, reason in self.board.take_failing().items():
            replace_it = partial(steps.replace_failing, id_, reason, timezone.now())
            if await self._attempt(replace_it) is FAILED:
                self.board.restore_failing({id_: reason})

    async def caller(self, token: str, address: str, path: str) -> Caller | None:
        """The user of a token, at most CALLER_S old; None: it is invalid.

        address, path: of the request. Raises DatabaseError, and Refused after many invalid tokens
        of the address.
        """
        known = self._callers.get(token)
        now_t = time.monotonic()
        if known is not None and now_t < known[0]:
            return known[1]
        if known is None:
            if self._unknown.is_refused(token, now_t):
                return None
            if delay := self._unknown.delay(address, now_t):
                raise _too_many_unknown(delay)
        caller = await self._auth(lambda: rows.caller_of(token, timezone.now()))
        if caller is None:
            self._callers.pop(token, None)
            self._unknown.add(token, time.monotonic())
            about = {"address": address, "path": path}
            logger.warning("A token was refused", extra={"kind": "TOKEN_REFUSED", **about})
            return None
        if known is None:
            self._unknown.give_back(address)
        return self._remembered(token, caller)

    async def caller_of_host(self, user_id: int) -> Caller | None:
        """The user of a request that another host passes on, at most CALLER_S old."""
        key = f"user {user_id}"
        known = self._callers.get(key)
        if known is not None and time.monotonic() < known[0]:
            return known[1]
        caller = await self._auth(lambda: rows.caller_of_host(user_id, timezone.now()))
        return caller and self._remembered(key, caller)

    def _remembered(self, key: str, caller: Caller) -> Caller:
        if len(self._callers) >= MOST_CALLERS:
            self._callers.clear()
        # Also those that are being written: none counts twice, at worst one is not counted yet.
        caller = replace(caller, written=self.board.written_of[caller.name])
        self._callers[key] = (time.monotonic() + CALLER_S, caller)
        return caller

    def close(self) -> None:
        self.database.close()
        self._auth.close()

    def _hear(self, heard: Listener) -> None:
        heard.drain()
        self._reads_t = 0.0
        self._stir.set()

    async def _attempt(self, action: Callable[[], object]) -> object:
        try:
            return await self.database(action)
        except Exception as error:
            text = "The endpoint for models can't read or write its rows"
            self._faults.log(error, text, FAULT)
            return FAILED


def _too_many_unknown(delay: float) -> Refused:
    seconds = max(1, ceil(delay))
    text = (
        f"Too many requests with invalid tokens came from your address. Try again in {seconds} s."
    )
    return Refused(
        429, text, type_="rate_limit_error", code="too_many_invalid_tokens", retry_after_s=seconds
    )


FAILED = object()
