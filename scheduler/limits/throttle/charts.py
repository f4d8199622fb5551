"""The page of the mode: overuse by hour, and the multiplier by other users' load."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from monitor.incidents.policy.lifecycle import union_s
from scheduler.limits.throttle.policy import throttle
from scheduler.limits.throttle.policy.throttle import AdaptivePolicy, LoadTier

HOUR_S = 3600
# The plot inside its SVG.
WIDE, HIGH = 480, 72
Spans = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class OveruseHour:
    """begin: epoch seconds. pct: part of the hour with overuse. x, y, width, height: its bar."""

    begin: float
    pct: float
    x: float
    y: float
    width: float
    height: float


def overuse_hours(spans: Spans, hours: int, now: datetime) -> list[OveruseHour]:
    """The last hours, oldest first; `spans`: begin and end of times with overuse."""
    end = now.timestamp()
    width = WIDE / hours
    made = []
    for number in range(hours):
        begin = end - (hours - number) * HOUR_S
        part = union_s([(max(a, begin), min(b, begin + HOUR_S)) for a, b in spans]) / HOUR_S
        tall = round(HIGH * part, 1)
        x = round(number * width, 1)
        made.append(
            OveruseHour(begin, 100 * part, x, round(HIGH - tall, 1), round(width - 2, 1), tall)
        )
    return made


def tiers(policy: AdaptivePolicy) -> list[tuple[str, float]]:
    """Each range of other users' load in words, with the multiplier there."""
    free, busy = policy.free_below_pct, policy.busy_above_pct
    words = {
        LoadTier.FREE: f"below {free:g} %",
        LoadTier.MIDDLE: f"{free:g}–{busy:g} %",
        LoadTier.BUSY: f"above {busy:g} %",
    }
    return [(text, throttle.multiplier(tier, policy)) for tier, text in words.items()]
