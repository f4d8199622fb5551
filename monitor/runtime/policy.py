"""State of the loops. A loop is stale if its last successful tick is three periods ago."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Generic, Protocol, TypeVar

from msgspec import Struct

LOOPS = ("sampler", "controller", "scheduler")
# A busy host or a hand-over may cause shorter pauses.
LEAST_STALE_S = 10.0
MISSED_TICKS = 3


class LoopState(StrEnum):
    OK = "ok"
    FAILING = "failing"
    STALE = "stale"


class LoopFact(Struct, frozen=True, kw_only=True):
    """A loop on one host, from its lease. `error` is None unless the newest tick failed."""

    loop: str
    host: str
    every_s: float
    last_tick_at: datetime | None = None
    lateness_p50_ms: float | None = None
    lateness_p99_ms: float | None = None
    failing_since_at: datetime | None = None
    error: str | None = None

    def age_s(self, now: datetime) -> float | None:
        """Seconds since the last successful tick; None if there was none."""
        if self.last_tick_at is None:
            return None
        return max(0.0, (now - self.last_tick_at).total_seconds())


def judge(fact: LoopFact, now: datetime) -> LoopState:
    age = fact.age_s(now)
    if age is None or age > max(LEAST_STALE_S, MISSED_TICKS * fact.every_s):
        return LoopState.STALE
    return LoopState.FAILING if fact.error else LoopState.OK


def worst(states: Iterable[LoopState]) -> LoopState:
    order = [LoopState.OK, LoopState.FAILING, LoopState.STALE]
    return max(states, key=order.index, default=LoopState.STALE)


def complete(facts: Iterable[LoopFact], host: str) -> list[LoopFact]:
    """All loops of `host` in their usual order; a loop that never ran has no tick."""
    by_loop = {fact.loop: fact for fact in facts if fact.host == host}
    return [by_loop.get(n) or LoopFact(loop=n, host=host, every_s=1) for n in LOOPS]


def verdict(facts: Iterable[LoopFact], now: datetime) -> str:
    """A sentence about the worst loop, or that all loops work."""
    states = [(judge(fact, now), fact) for fact in facts]
    for bad_state in (LoopState.STALE, LoopState.FAILING):
        affected = [fact for state, fact in states if state is bad_state]
        if affected:
            more = f", and {len(affected) - 1} more" if len(affected) > 1 else ""
            return f"{_trouble(affected[0], bad_state, now)}{more}"
    return "All services running"


def _trouble(fact: LoopFact, state: LoopState, now: datetime) -> str:
    name = f"The {fact.loop} on {fact.host}"
    if state is LoopState.FAILING:
        return f"{name} fails"
    age = fact.age_s(now)
    return f"{name} has never run" if age is None else f"{name} is not running"


# The protocol of a loop step, and a value that is reloaded after a given age.


# One database transaction that first renews the loop's lease. It raises LeaseLost, and rolls
# everything inside back, when another holder has taken over. All writes of a step go through it.
Guard = Callable[[], AbstractContextManager[None]]


class Step(Protocol):
    """Built as `build(guard) -> Step`; opened in the process that runs it, after the fork."""

    def open(self) -> None: ...

    def step(self, now: datetime) -> object:
        """One pass of work at `now` (aware). Returns what it did; raises on a fault."""

    def close(self) -> None: ...


T = TypeVar("T")


class TimedCache(Generic[T]):
    """`cache(now)` returns the value, at most `max_age` old. A clock set back loads it again."""

    def __init__(self, load: Callable[[datetime], T], max_age: timedelta) -> None:
        self._load = load
        self._max_age = max_age
        self._entry: tuple[datetime, T] | None = None

    def __call__(self, now: datetime) -> T:
        if self._entry is None or not timedelta() <= now - self._entry[0] < self._max_age:
            self._entry = (now, self._load(now))
        return self._entry[1]

    def forget(self) -> None:
        """The next call loads the value again."""
        self._entry = None
