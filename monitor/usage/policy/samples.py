"""Busy seconds of each process, from the driver's utilisation samples since a cursor.

The cursor is the greatest timestamp of the driver, in the driver's own clock. Some drivers report
one sample per process, the mean since the cursor; others report each sample of their ring buffer. A
process without a sample had no sample above zero.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise

from monitor.facts.usage import GpuMark

# Values slightly above 100 are rounding; values above this are invalid.
NONSENSE_PCT = 200
# Plausibility limits of the driver's clock: relative rate, and seconds ahead of ours.
CLOCK_RATE, CLOCK_AHEAD_S = 1.5, 5.0
# Maximum unattributed work carried to the next sweep, whose samples may attribute it.
CARRY_S = 2.0


@dataclass(frozen=True, slots=True)
class UseSample:
    """One process's share of a GPU's time up to `t_us`."""

    pid: int
    t_us: int
    sm_pct: int


@dataclass(frozen=True, slots=True)
class SampleTotals:
    """Busy seconds by pid. `is_known` false: nothing is known of this time; only later times count.

    `doubtful`: pids with invalid samples only; their use is unknown, not zero. `strangers`: an
    unlisted process worked, such as one that started and ended since the sweep before.
    """

    busy_s: dict[int, float]
    mark: GpuMark
    is_known: bool = True
    doubtful: frozenset[int] = field(default_factory=frozenset)
    strangers: bool = False
    dropped: int = 0


def count(
    samples: Iterable[UseSample], mark: GpuMark, passed_s: float, pids: Collection[int]
) -> SampleTotals:
    """Sum all samples since the cursor, each for the time that it covers."""
    if mark.cursor_us is None:
        stamps = [s.t_us for s in samples if s.pid in pids and s.sm_pct <= NONSENSE_PCT]
        begun = replace(mark, cursor_us=max(stamps, default=0), age_s=0.0)
        return SampleTotals({}, begun, is_known=not stamps)
    sifted = _sift(samples, mark, mark.cursor_us, passed_s, pids)
    if sifted.jumped and not sifted.good:
        # The driver's clock has jumped: begin anew with its next timestamp.
        return SampleTotals(
            {}, replace(mark, cursor_us=None), is_known=False, dropped=sifted.dropped
        )
    period = _period(sifted.good, mark.period_us)
    busy: dict[int, float] = {}
    grid = sorted({t for _, t in sifted.good})
    for (pid, t), pct in sifted.good.items():
        covered = _covered_us(t, grid, mark.cursor_us, period, passed_s)
        busy[pid] = busy.get(pid, 0.0) + pct / 100 * covered / 1e6
    moved = sifted.newest > mark.cursor_us
    after = replace(
        mark,
        cursor_us=max(sifted.newest, mark.cursor_us),
        age_s=0.0 if moved else mark.age_s + passed_s,
        period_us=period,
    )
    return SampleTotals(
        busy,
        after,
        doubtful=frozenset(sifted.doubtful - busy.keys()),
        strangers=sifted.strangers,
        dropped=sifted.dropped,
    )


@dataclass(slots=True)
class _Sifted:
    good: dict[tuple[int, int], int] = field(default_factory=dict)
    newest: int = 0
    doubtful: set[int] = field(default_factory=set)
    dropped: int = 0
    jumped: bool = False
    strangers: bool = False


def _sift(
    samples: Iterable[UseSample],
    mark: GpuMark,
    cursor: int,
    passed_s: float,
    pids: Collection[int],
) -> _Sifted:
    """Plausible samples: known pids, new timestamps of this clock, valid percentages, each once."""
    sifted = _Sifted()
    ahead_s = (mark.age_s + passed_s) * CLOCK_RATE + CLOCK_AHEAD_S
    latest = cursor + int(ahead_s * 1e6) if cursor else None
    for sample in samples:
        jumped = latest is not None and sample.t_us > latest
        nonsense = not 0 <= sample.sm_pct <= NONSENSE_PCT
        if sample.pid in pids and not jumped and not nonsense and sample.t_us > cursor:
            key = (sample.pid, sample.t_us)
            sifted.dropped += key in sifted.good
            sifted.good[key] = min(100, sample.sm_pct)
            sifted.newest = max(sifted.newest, sample.t_us)
            continue
        sifted.dropped += 1
        sifted.jumped |= jumped and sample.pid in pids
        if nonsense and sample.pid in pids:
            sifted.doubtful.add(sample.pid)
        if latest is not None and not jumped and not nonsense:
            sifted.newest = max(sifted.newest, sample.t_us)
        real = not jumped and not nonsense and sample.t_us > cursor
        sifted.strangers |= real and sample.pid not in pids
    return sifted


def _period(good: Collection[tuple[int, int]], known_us: int | None) -> int | None:
    """The shortest time between two samples of one process; None if each has only one."""
    stamps: dict[int, list[int]] = {}
    for pid, t in good:
        stamps.setdefault(pid, []).append(t)
    steps = [b - a for times in stamps.values() for a, b in pairwise(sorted(times))]
    return min([*steps, *([known_us] if known_us else [])], default=None)


def _covered_us(t: int, grid: list[int], cursor: int, period: int | None, passed_s: float) -> float:
    """The time in µs that the sample at `t` covers."""
    if period is None:
        return t - cursor if cursor else passed_s * 1e6
    at = bisect_left(grid, t)
    before = grid[at - 1] if at else cursor
    return min(t - before, period) if before else period


def within_device(
    busy_s: Mapping[int, float], allowance_s: float, device_s: float
) -> tuple[dict[int, float], float]:
    """Scale to at most the busy time of the GPU; also return its work not attributed yet.

    Process samples arrive later than the device's own figure, so the rest is carried over.
    """
    room = allowance_s + device_s
    total_s = sum(busy_s.values())
    scale = min(1.0, room / total_s) if total_s > 0 else 0.0
    scaled = {pid: seconds * scale for pid, seconds in busy_s.items()}
    return scaled, max(0.0, min(CARRY_S, room - total_s * scale))
