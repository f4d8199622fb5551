"""Facts: the protocol of a loop step, and a value that is reloaded after a given age."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from typing import Generic, Protocol, TypeVar

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
