"""A driver's samples of processes' work: its own µs clock, rings or means, running sums."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

# Busy seconds of one process between two instants of the driver's clock, in seconds.
Work = Callable[[float, float], float]
PERIOD_US = 166_667
RING = 100


def steady(duty: float) -> Work:
    return lambda a, b: duty * (b - a)


def pulsed(period_s: float, begin: float, end: float) -> Work:
    """Busy from `begin` to `end` of each period, parts of 1: others' pulses need not overlap."""

    def until(t: float) -> float:
        whole, part = divmod(t / period_s, 1)
        return period_s * (whole * (end - begin) + min(max(part - begin, 0.0), end - begin))

    return lambda a, b: until(b) - until(a)


def between(begin: float, end: float, inner: Work) -> Work:
    """Work that goes on only from `begin` to `end`, as a process does that starts and ends."""
    return lambda a, b: inner(max(a, begin), min(b, end)) if min(b, end) > max(a, begin) else 0.0


def ring(work: Mapping[int, Work], since_us: int, now_us: int) -> list[Any]:
    """A sample per period and process that worked in it, as far back as the ring goes."""
    newest = now_us // PERIOD_US
    oldest = max(since_us // PERIOD_US, newest - RING)
    return [
        _sample(pid, n * PERIOD_US, _pct(busy, (n - 1) * PERIOD_US, n * PERIOD_US))
        for n in range(oldest + 1, newest + 1)
        if n * PERIOD_US > since_us
        for pid, busy in work.items()
        if _pct(busy, (n - 1) * PERIOD_US, n * PERIOD_US)
    ]


def mean(work: Mapping[int, Work], since_us: int, now_us: int) -> list[Any]:
    """One sample per process that worked since then: its mean."""
    newest = now_us // PERIOD_US * PERIOD_US
    since = since_us or newest - RING * PERIOD_US
    if newest <= since:
        return []
    shares = {pid: _pct(busy, since, newest) for pid, busy in work.items()}
    return [_sample(pid, newest, pct) for pid, pct in shares.items() if pct]


def _pct(busy: Work, a_us: int, b_us: int) -> int:
    return round(100 * busy(a_us / 1e6, b_us / 1e6) / ((b_us - a_us) / 1e6))


def _sample(pid: int, t_us: int, pct: int) -> Any:
    return SimpleNamespace(pid=pid, timeStamp=t_us, smUtil=pct, memUtil=0)


def account(pid: int, work: Work, start_us: int, end_us: int | None, now_us: int) -> Any:
    """Running sums since the process began, kept after its end."""
    until = now_us if end_us is None else min(end_us, now_us)
    count = max(0, (until - start_us) // PERIOD_US)
    busy = work(start_us / 1e6, (start_us + count * PERIOD_US) / 1e6)
    return SimpleNamespace(
        pid=pid,
        isRunning=int(until == now_us),
        startTime=start_us,
        sampleCount=count,
        sumGpuUtil=round(1e4 * busy / (PERIOD_US / 1e6)),
        maxMemoryUsage=3 * 1024**3,
        time=0 if until == now_us else (until - start_us) / 1000,
    )
