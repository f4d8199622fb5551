"""Edge: calls of an engine beside the loop, so that a slow engine never delays a tick."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

THREADS = 4


@dataclass(frozen=True, slots=True)
class CallResult:
    """The result of a call, or the error that it raised."""

    key: tuple[str, object]
    value: Any = None
    error: Exception | None = None


class BackgroundCalls:
    """`start` a call under a key, and take results from `finished`. Only one call runs for a key.

    The threads are daemons: an unfinished call does not keep the process from ending.
    """

    def __init__(self, threads: int = THREADS) -> None:
        self._threads = threads
        self._todo: SimpleQueue[tuple[tuple[str, object], Callable[[], Any]] | None] = SimpleQueue()
        self._done: SimpleQueue[CallResult] = SimpleQueue()
        self._in_flight: set[tuple[str, object]] = set()
        self._started: list[threading.Thread] = []

    def start(self, kind: str, item: object, call: Callable[[], Any]) -> bool:
        """False: the same call is in flight."""
        key = (kind, item)
        if key in self._in_flight:
            return False
        self._in_flight.add(key)
        if len(self._started) < min(self._threads, len(self._in_flight)):
            thread = threading.Thread(target=self._work, name="engine", daemon=True)
            self._started.append(thread)
            thread.start()
        self._todo.put((key, call))
        return True

    def is_busy(self, kind: str, item: object) -> bool:
        return (kind, item) in self._in_flight

    def count(self, kind: str) -> int:
        return sum(key[0] == kind for key in self._in_flight)

    def finished(self) -> list[CallResult]:
        """Results since the last call."""
        results = []
        while not self._done.empty():
            result = self._done.get()
            self._in_flight.discard(result.key)
            results.append(result)
        return results

    def close(self, patience_s: float = 2.0) -> list[CallResult]:
        """Wait shortly for calls in flight; returns their results."""
        deadline, results = time.monotonic() + patience_s, self.finished()
        while self._in_flight and time.monotonic() < deadline:
            time.sleep(0.02)
            results += self.finished()
        for _ in self._started:
            self._todo.put(None)
        self._started.clear()
        return results

    def _work(self) -> None:
        while (order := self._todo.get()) is not None:
            key, call = order
            try:
                self._done.put(CallResult(key, call()))
            except Exception as error:
                self._done.put(CallResult(key, error=error))
