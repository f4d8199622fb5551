"""Policy: how long a job waited for what. Its row has the changes of its main blocker as a text."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from datetime import datetime
from itertools import pairwise

# Of a job whose blocker changes more often, the oldest changes are dropped.
LONGEST = 4000


def entry(code: str, at: datetime) -> str:
    """From `at` on, this is the main blocker."""
    return f"{int(at.timestamp())}{ending(code)}"


def ending(code: str) -> str:
    """By what an entry with this code is recognised."""
    return f" {code};"


def seconds(log: str, since: float, until: float) -> dict[str, float]:
    """Seconds with each main blocker in that time (epoch seconds), without unreadable parts."""
    marks = [mark for mark in map(_mark, log.split(";")) if mark is not None]
    seconds_by_code: dict[str, float] = defaultdict(float)
    for (begin, code), (end, _) in pairwise([*marks, (until, "")]):
        inside = min(end, until) - max(begin, since)
        if inside > 0:
            seconds_by_code[code] += inside
    return dict(seconds_by_code)


def spans(log: str, codes: Collection[str], until: float) -> list[tuple[float, float]]:
    """(begin, end) of each time with one of these main blockers, in epoch seconds."""
    marks = [mark for mark in map(_mark, log.split(";")) if mark is not None]
    return [
        (begin, min(end, until))
        for (begin, code), (end, _) in pairwise([*marks, (until, "")])
        if code in codes and begin < until
    ]


def longest(log: str, since: float, until: float) -> str:
    """The blocker that the job waited for longest; "" = unknown."""
    seconds_by_code = seconds(log, since, until)
    return max(seconds_by_code, key=lambda code: seconds_by_code[code], default="")


def _mark(text: str) -> tuple[float, str] | None:
    at, _, code = text.partition(" ")
    return (float(at), code) if at.isdigit() and code else None
