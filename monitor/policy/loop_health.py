"""Whether each loop works: stale when it has made no good tick for three of its periods."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

LOOPS = ("sampler", "controller", "scheduler")
# Shorter than this is a pause that a busy machine or a hand-over may make.
LEAST_STALE_S = 10.0
MISSED_TICKS = 3


class LoopState(StrEnum):
    OK = "ok"
    FAILING = "failing"
    STALE = "stale"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopFact:
    """A loop on one host as its lease tells it. `error` is None unless the newest tick failed."""

    loop: str
    host: str
    every_s: float
    last_tick_at: datetime | None = None
    lateness_p50_ms: float | None = None
    lateness_p99_ms: float | None = None
    failing_since_at: datetime | None = None
    error: str | None = None

    def age_s(self, now: datetime) -> float | None:
        """Seconds since the last good tick; None when there was none."""
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
    """The loops of `host` in their usual order; one that never ran is there without a tick."""
    known = {fact.loop: fact for fact in facts if fact.host == host}
    return [known.get(n) or LoopFact(loop=n, host=host, every_s=1) for n in LOOPS]


def verdict(facts: Iterable[LoopFact], now: datetime) -> str:
    """One sentence for people: the worst loop, or that all work."""
    judged = [(judge(fact, now), fact) for fact in facts]
    for wanted in (LoopState.STALE, LoopState.FAILING):
        found = [fact for state, fact in judged if state is wanted]
        if found:
            more = f", and {len(found) - 1} more" if len(found) > 1 else ""
            return f"{_trouble(found[0], wanted, now)}{more}"
    return "gpucoord works: every loop ticks"


def _trouble(fact: LoopFact, state: LoopState, now: datetime) -> str:
    name = f"The {fact.loop} on {fact.host}"
    if state is LoopState.FAILING:
        return f"{name} fails"
    age = fact.age_s(now)
    return f"{name} has never ticked" if age is None else f"{name} stands still"
