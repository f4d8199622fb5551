"""Policy: the queue of one host's requests to models: who waits, who runs where, who is next.

Priority 5 comes before 4, and so on. Within a priority, the fair-share deficit decides, which also
orders jobs; the places that a user takes on the model reduce it. Equal users take turns by the time
that their request has waited. Some places stay free for users who used the model recently and have
no request there now, so that a flood of one user does not delay them.

An instance below its concurrency takes a request, one without requests first. Otherwise an instance
that is booting will take it, or another one is started, or it waits for a place.

The state is rebuilt from rows and requests; it is a hint that may be lost.
"""

from __future__ import annotations

import json
from bisect import insort
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from math import ceil

from msgspec import Struct, field
from msgspec.structs import replace

from monitor.facts.thresholds import threshold
from scheduler.facts.language_models import (
    Assignment,
    DayUse,
    Deficits,
    Instance,
    NewPrompt,
    Request,
    Service,
    Start,
    Wait,
    WaitCode,
)
from scheduler.facts.people import Quota

# Limits of prompts: how long they may wait and run, how many a user may send a day.

MIB = 1024**2
# MiB of messages and parameters of a user's waiting prompts, as stored, except of operators.
WAITING_MIB = 32.0
# Hourly sums of requests and tokens of each user and model are kept for this time.
USE_KEPT = timedelta(days=400)


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptPolicy:
    """Requests to language models: waiting, time limits and retention."""

    # fmt: off
    waiting: int = threshold(500, "Waiting requests of a user", ge=1, le=100_000,
        help="Prompts and requests of the endpoint together. Further ones get 429.")
    wait_s: float = threshold(300.0, "Longest wait of the endpoint", unit="s", ge=1, le=3600,
        help="A request without an instance after this time gets 503 with Retry-After. "
             "Prompts of the queue wait without a limit.")
    stall_s: float = threshold(120.0, "Stalled after", unit="s", ge=1, le=3600,
        help="An instance that sends nothing for this time within a stream has failed with the "
             "request. Other answers may be silent for the longest answer.")
    answer_s: float = threshold(1800.0, "Longest answer", unit="s", ge=10, le=86_400,
        help="From the start of a request on an instance to its last byte.")
    days: float = threshold(30.0, "Retention of prompts", unit="d", ge=0.01, le=3650,
        help="Prompts with their answers are deleted this long after their end.")
    # fmt: on


def size_of(new: NewPrompt) -> int:
    """Bytes of the prompt as it is stored: JSON in ASCII."""
    return len(json.dumps(new.messages)) + len(json.dumps(dict(new.parameters)))


def over_quota(quota: Quota, used: DayUse) -> str:
    """Why the user may send no further request today, in a sentence; "" = it may."""
    if quota.prompts is not None and used.requests >= quota.prompts:
        return (
            f"You have sent {used.requests} requests to models today;"
            f" your quota allows {quota.prompts} a day."
        )
    if quota.prompt_tokens is not None and used.tokens >= quota.prompt_tokens:
        return (
            f"Your requests to models have used {used.tokens} tokens today;"
            f" your quota allows {quota.prompt_tokens} a day."
        )
    return ""


def assign(
    request: Request,
    service: Service,
    in_flight: Mapping[int, int],
    *,
    position: int = 1,
    reserved: int = 0,
) -> Assignment:
    """in_flight: requests of each instance by its id. reserved: places kept for other users."""
    instance = least_busy(request, service, in_flight)
    free = free_places(service, in_flight)
    if instance is not None and free > reserved:
        return Assignment(instance=instance)
    wait = _wait(request, service, position, is_reserved=instance is not None)
    return Assignment(wait=wait, boots=instance is None and needs_boot(service))


def least_busy(request: Request, service: Service, in_flight: Mapping[int, int]) -> Instance | None:
    """The ready instance with a free place and the fewest requests; None: there is none.

    An instance that failed with this request is the last choice.
    """
    open_ = [
        instance
        for instance in service.ready
        if in_flight.get(instance.id, 0) < service.concurrency
    ]
    return min(
        open_,
        key=lambda instance: (
            instance.id in request.tried,
            in_flight.get(instance.id, 0),
            instance.id,
        ),
        default=None,
    )


def free_places(service: Service, in_flight: Mapping[int, int]) -> int:
    places = (service.concurrency - in_flight.get(instance.id, 0) for instance in service.ready)
    return sum(max(0, free) for free in places)


def needs_boot(service: Service) -> bool:
    """Whether to ask for another instance; a boot under way, or another host, is enough."""
    is_booting = any(instance.is_booting for instance in service.instances)
    return (
        not is_booting and not service.elsewhere and len(service.instances) < service.max_instances
    )


def _wait(request: Request, service: Service, position: int, *, is_reserved: bool) -> Wait:
    ready, booting = (
        service.ready,
        [instance for instance in service.instances if instance.is_booting],
    )
    known_s = [instance.ready_in_s for instance in booting if instance.ready_in_s is not None]
    ready_in_s = min(known_s, default=None)
    if is_reserved:
        code = WaitCode.PLACE_RESERVED
    elif not service.is_enabled:
        code = WaitCode.MODEL_DISABLED
    elif ready:
        code = WaitCode.INSTANCES_BUSY
    elif service.elsewhere:
        code = WaitCode.MODEL_ELSEWHERE
    elif known_s:
        code = WaitCode.MODEL_BOOTS
    elif service.batch is not None:
        code = WaitCode.BATCH_EXCLUSIVE
    elif service.problem:
        code = WaitCode.MODEL_FAILED
    else:
        code = WaitCode.MODEL_WAITS_FOR_GPU
    reasons = {
        WaitCode.MODEL_FAILED: service.problem,
        WaitCode.MODEL_ELSEWHERE: service.elsewhere,
        WaitCode.BATCH_EXCLUSIVE: f"batch {service.batch}",
    }
    return Wait(
        code=code,
        model=service.name,
        position=position,
        instances=len(ready),
        ready_in_s=ready_in_s,
        reason=reasons.get(code, ""),
    )


# A user who used a model within this time finds a free place there.
RECENT_S = 600.0
# At most this part of the places is reserved.
RESERVED_PART = 0.25
MOST_SEEN = 1000


class Running(Struct, frozen=True):
    request: Request
    instance: Instance


class RequestQueue(Struct):
    """The waiting and running requests of one model. A user's waiting ones are in their order."""

    waiting: dict[str, list[Request]] = field(default_factory=dict)
    running: dict[Hashable, Running] = field(default_factory=dict)
    # When each user's last request ended or came.
    seen_s: dict[str, float] = field(default_factory=dict)

    def add(self, request: Request) -> None:
        insort(self.waiting.setdefault(request.owner, []), request, key=_own_order)

    def take(self, request: Request) -> bool:
        """Remove it from the waiting ones. False: it does not wait."""
        own = self.waiting.get(request.owner, [])
        for at, other in enumerate(own):
            if other.key == request.key:
                del own[at]
                if not own:
                    del self.waiting[request.owner]
                return True
        return False

    def waits(self, request: Request) -> bool:
        return any(other.key == request.key for other in self.waiting.get(request.owner, ()))

    def each(self) -> Iterator[Request]:
        for own in self.waiting.values():
            yield from own


def _own_order(request: Request) -> tuple[int, float]:
    return (-request.priority, request.since_s)


class Router:
    """Requests of all models. Times are seconds of one clock, which the caller reads."""

    def __init__(self) -> None:
        self._services: Mapping[str, Service] = {}
        self._queues: dict[str, RequestQueue] = {}
        self._deficits: Deficits = {}

    def update(self, services: Iterable[Service], deficits: Deficits | None = None) -> None:
        """Take over what the rows say. Requests whose service is gone keep waiting for it."""
        self._services = {service.name: service for service in services}
        if deficits is not None:
            self._deficits = deficits

    def service(self, name: str) -> Service | None:
        return self._services.get(name)

    @property
    def services(self) -> Mapping[str, Service]:
        return self._services

    def add(self, request: Request) -> None:
        queue = self._queues.setdefault(request.service, RequestQueue())
        queue.add(request)
        queue.seen_s[request.owner] = request.since_s
        if len(queue.seen_s) > MOST_SEEN:
            recent = request.since_s - RECENT_S
            queue.seen_s = {name: at for name, at in queue.seen_s.items() if at >= recent}

    def remove(self, request: Request, now_s: float) -> None:
        """The request has ended, or its client has gone."""
        queue = self._queues.get(request.service)
        if queue is not None:
            queue.take(request)
            queue.running.pop(request.key, None)
            queue.seen_s[request.owner] = now_s

    def retry(self, request: Request, failed: Instance) -> Request:
        """Let a request wait again whose instance failed; returns the request as it waits now."""
        self._queues[request.service].running.pop(request.key, None)
        again = replace(request, tried=request.tried | {failed.id})
        self._queues[request.service].add(again)
        return again

    def start(self, now_s: float) -> tuple[list[Start], list[int]]:
        """The requests that instances take now, and the services that need another instance."""
        starts: list[Start] = []
        boots: list[int] = []
        for name, queue in self._queues.items():
            service = self._services.get(name)
            if service is not None and queue.waiting:
                more, needs_boot = self._start(service, queue, now_s)
                starts += more
                boots += [service.id] if needs_boot else []
        return starts, boots

    def _start(
        self, service: Service, queue: RequestQueue, now_s: float
    ) -> tuple[list[Start], bool]:
        starts: list[Start] = []
        # Users who may not take the free places now.
        blocked: set[str] = set()
        while free_places(service, _in_flight(queue)):
            request = self._next(service, queue, blocked)
            if request is None:
                return starts, False
            chosen = self._assign(service, queue, request, now_s)
            if chosen.instance is None:
                blocked.add(request.owner)
                continue
            queue.take(request)
            queue.running[request.key] = Running(request, chosen.instance)
            starts.append(Start(request, chosen.instance))
        return starts, bool(queue.waiting) and needs_boot(service)

    def _assign(
        self,
        service: Service,
        queue: RequestQueue,
        request: Request,
        now_s: float,
        position: int = 1,
    ) -> Assignment:
        return assign(
            request,
            service,
            _in_flight(queue),
            position=position,
            reserved=_reserved(service, queue, request.owner, now_s),
        )

    def _next(self, service: Service, queue: RequestQueue, blocked: set[str]) -> Request | None:
        """The first request in the order of the class's description."""
        held = _held(queue)
        capacity = max(1, service.concurrency * max(1, len(service.ready)))
        candidates = (own[0] for owner, own in queue.waiting.items() if owner not in blocked)
        return min(
            candidates, key=lambda candidate: self._rank(candidate, held, capacity), default=None
        )

    def _rank(
        self, request: Request, held: Mapping[str, int], capacity: int
    ) -> tuple[int, float, float]:
        deficit = self._deficits.get(request.owner, 0.0)
        score = deficit - held.get(request.owner, 0) / capacity
        return (-request.priority, -round(score, 6), request.since_s)

    def in_flight(self) -> dict[int, int]:
        """The requests that each instance answers now, by its id."""
        queues = self._queues.values()
        return Counter(
            running.instance.id for queue in queues for running in queue.running.values()
        )

    def waiting(self) -> Iterator[Request]:
        for queue in self._queues.values():
            yield from queue.each()

    def waiting_of(self, owner: str) -> int:
        return sum(len(queue.waiting.get(owner, ())) for queue in self._queues.values())

    def wait(self, request: Request, now_s: float) -> Wait | None:
        """Why the request waits; None: it does not, or there is no such model."""
        queue, service = self._queues.get(request.service), self._services.get(request.service)
        if queue is None or service is None or not queue.waits(request):
            return None
        position = self._position(service, queue, request)
        return self._assign(service, queue, request, now_s, position).wait

    def _position(self, service: Service, queue: RequestQueue, request: Request) -> int:
        """Its place if no user's share changes meanwhile: users take turns."""
        held = _held(queue)
        capacity = max(1, service.concurrency * max(1, len(service.ready)))
        place = 0
        mine = self._rank(request, held, capacity)
        for other in queue.each():
            place += self._rank(other, held, capacity) < mine
        return place + 1


def _in_flight(queue: RequestQueue) -> dict[int, int]:
    return Counter(running.instance.id for running in queue.running.values())


def _held(queue: RequestQueue) -> dict[str, int]:
    return Counter(running.request.owner for running in queue.running.values())


def _reserved(service: Service, queue: RequestQueue, owner: str, now_s: float) -> int:
    """Places that stay free for recent users without a request in flight."""
    places = service.concurrency * len(service.ready)
    if places < 2 or owner not in (held := _held(queue)):
        return 0
    quiet = sum(
        other not in held and now_s - seen_s <= RECENT_S for other, seen_s in queue.seen_s.items()
    )
    return min(quiet, max(1, int(places * RESERVED_PART)))


# Wording: why a request to a model waits, in a sentence.

# Without a known time, clients ask again after this many seconds.
ASK_AGAIN_S = 10


def sentence(wait: Wait) -> str:
    """Such as "all 2 instances busy, position 7"."""
    place = f"position {wait.position}"
    if wait.code is WaitCode.MODEL_BOOTS:
        return f"model boots, {_ready(wait.ready_in_s)}, {place}"
    if wait.code is WaitCode.MODEL_DISABLED:
        return f"an operator has disabled the model, {place}"
    if wait.code is WaitCode.MODEL_WAITS_FOR_GPU:
        return f"model waits for a free GPU, {place}"
    if wait.code is WaitCode.MODEL_ELSEWHERE:
        return f"another host runs the model, {place}"
    if wait.code is WaitCode.PLACE_RESERVED:
        return f"the free place is kept for other users of the model, {place}"
    if wait.code is WaitCode.MODEL_FAILED:
        return f"the last start of the model failed ({wait.reason}); it is tried again, {place}"
    if wait.code is WaitCode.BATCH_EXCLUSIVE:
        return f"{wait.reason} has the GPUs of the model for itself, {place}"
    if wait.instances == 1:
        return f"the only instance is busy, {place}"
    return f"all {wait.instances} instances busy, {place}"


def elsewhere(model: str, pages: Mapping[str, str], *, is_passed_on: bool = False) -> str:
    """Where a model runs, and where to send requests. pages: of each host that runs it, the page of
    the model there; "" = other hosts cannot reach its pages.
    """
    hosts = " and ".join(pages)
    if is_passed_on:
        return f"{model} runs on {hosts}. The endpoint of this host passes requests on."
    known = [page for page in pages.values() if page]
    if not known:
        return f"{model} runs on {hosts}. Send requests to the endpoint for models of that host."
    named = " and ".join(known)
    return f"{model} runs on {hosts}. Send requests to the endpoint there, which {named} names."


def _ready(seconds: float | None) -> str:
    if seconds is None:
        return "ready soon"
    return "ready now" if seconds < 1 else f"ready in ~{ceil(seconds)} s"


def retry_after_s(wait: Wait | None) -> int:
    """Seconds after which a client should ask again."""
    if wait is None or wait.ready_in_s is None:
        return ASK_AGAIN_S
    return max(1, ceil(wait.ready_in_s))
