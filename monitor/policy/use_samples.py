"""How long each process kept a GPU busy, from the driver's samples since a cursor.

The cursor is the greatest timestamp that the driver gave; its clock is its own, never ours.
Some drivers give one sample per process, the mean since the cursor; others give each sample of
their ring. A process without a sample had none above zero.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise

from monitor.use_facts import GpuMark

# A little above 100 is rounding; what is above this is no percentage at all.
NONSENSE_PCT = 200
# The driver's clock may run that much faster than ours, and that far ahead, to be believed.
CLOCK_RATE, CLOCK_AHEAD_S = 1.5, 5.0
# So much of a GPU's work may wait for the samples that tell whose it was.
CARRY_S = 2.0


@dataclass(frozen=True, slots=True)
class UseSample:
    """One process's share of a GPU's time up to `t_us`."""

    pid: int
    t_us: int
    sm_pct: int


@dataclass(frozen=True, slots=True)
class Counted:
    """Busy seconds by pid. `is_known` false: nothing can be said of this time, only from here on.

    `doubtful`: pids of which only nonsense was told: theirs is unknown, not zero. `strangers`: it
    was somebody else who worked, such as a process that came and went since the sweep before.
    """

    busy_s: dict[int, float]
    mark: GpuMark
    is_known: bool = True
    doubtful: frozenset[int] = field(default_factory=frozenset)
    strangers: bool = False
    dropped: int = 0


def count(
    samples: Iterable[UseSample], mark: GpuMark, passed_s: float, pids: Collection[int]
) -> Counted:
    """Every sample since the cursor counts, for as long as it stands."""
    if mark.cursor_us is None:
        stamps = [s.t_us for s in samples if s.pid in pids and s.sm_pct <= NONSENSE_PCT]
        begun = replace(mark, cursor_us=max(stamps, default=0), age_s=0.0)
        return Counted({}, begun, is_known=not stamps)
    sifted = _sift(samples, mark, mark.cursor_us, passed_s, pids)
    if sifted.jumped and not sifted.good:
        # The driver's clock has jumped: begin anew from what it says next.
        return Counted({}, replace(mark, cursor_us=None), is_known=False, dropped=sifted.dropped)
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
    return Counted(
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
    """What can be believed: known pids, new stamps of this clock, real percentages, each once."""
    found = _Sifted()
    ahead_s = (mark.age_s + passed_s) * CLOCK_RATE + CLOCK_AHEAD_S
    latest = cursor + int(ahead_s * 1e6) if cursor else None
    for sample in samples:
        jumped = latest is not None and sample.t_us > latest
        nonsense = not 0 <= sample.sm_pct <= NONSENSE_PCT
        if sample.pid in pids and not jumped and not nonsense and sample.t_us > cursor:
            key = (sample.pid, sample.t_us)
            found.dropped += key in found.good
            found.good[key] = min(100, sample.sm_pct)
            found.newest = max(found.newest, sample.t_us)
            continue
        found.dropped += 1
        found.jumped |= jumped and sample.pid in pids
        if nonsense and sample.pid in pids:
            found.doubtful.add(sample.pid)
        if latest is not None and not jumped and not nonsense:
            found.newest = max(found.newest, sample.t_us)
        real = not jumped and not nonsense and sample.t_us > cursor
        found.strangers |= real and sample.pid not in pids
    return found


def _period(good: Collection[tuple[int, int]], known_us: int | None) -> int | None:
    """The shortest time between two samples of one process; None while each gives but one."""
    stamps: dict[int, list[int]] = {}
    for pid, t in good:
        stamps.setdefault(pid, []).append(t)
    steps = [b - a for times in stamps.values() for a, b in pairwise(sorted(times))]
    return min([*steps, *([known_us] if known_us else [])], default=None)


def _covered_us(t: int, grid: list[int], cursor: int, period: int | None, passed_s: float) -> float:
    """For how long the sample of `t` stands."""
    if period is None:
        return t - cursor if cursor else passed_s * 1e6
    at = bisect_left(grid, t)
    before = grid[at - 1] if at else cursor
    return min(t - before, period) if before else period


def within_device(
    busy_s: Mapping[int, float], allowance_s: float, device_s: float
) -> tuple[dict[int, float], float]:
    """Together no more than the GPU itself was busy; and what of its work is still nobody's.

    Samples come a little later than the device's own figure, so some of that may wait.
    """
    room = allowance_s + device_s
    wanted = sum(busy_s.values())
    scale = min(1.0, room / wanted) if wanted > 0 else 0.0
    given = {pid: seconds * scale for pid, seconds in busy_s.items()}
    return given, max(0.0, min(CARRY_S, room - wanted * scale))
