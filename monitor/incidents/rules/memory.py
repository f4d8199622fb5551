"""Rules on GPU memory: most of it taken, leaked, held idle, or orphaned."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations, pairwise
from statistics import median

from monitor.facts.formats import GIB
from monitor.facts.readings import ProcessReading
from monitor.incidents.facts import IDLE_HELD, LEAK, MEMORY_HOG, ORPHANED
from monitor.incidents.policy.findings import Finding, Group, RuleInput, key_of, main_process
from monitor.incidents.policy.thresholds import COVERAGE_PCT, MemoryPolicy
from monitor.incidents.policy.usage_series import Series, quiet_since
from monitor.incidents.rules.gpu_time import STALE_S, held_bytes, is_covered


@dataclass(frozen=True, slots=True)
class Trend:
    """slope: per second. rising: the part (0..1) of all pairs of points that rise."""

    slope: float
    rising: float


def trend(points: Sequence[tuple[float, float]]) -> Trend | None:
    """Theil–Sen estimate; None for fewer than three points."""
    if len(points) < 3:
        return None
    slopes = [(v2 - v1) / (t2 - t1) for (t1, v1), (t2, v2) in combinations(points, 2) if t2 > t1]
    if not slopes:
        return None
    return Trend(median(slopes), sum(slope > 0 for slope in slopes) / len(slopes))


def chance_of_growth(changes: Iterable[float]) -> float:
    """The probability that changes without a direction rise as much as these, or more.

    One-sided exact signed-rank test (Wilcoxon 1945) without the changes of 0. Of equal amounts,
    falls get the greater ranks, so ties make no growth more certain.
    """
    ranked = sorted((change for change in changes if change), key=lambda d: (abs(d), d < 0))
    rises = sum(rank for rank, change in enumerate(ranked, 1) if change > 0)
    return math.ldexp(sum(_rank_sums(len(ranked))[rises:]), -len(ranked))


@lru_cache(maxsize=64)
def _rank_sums(count: int) -> tuple[int, ...]:
    """By sum: how many of the subsets of the ranks 1 to `count` have it."""
    sums = [1]
    for rank in range(1, count + 1):
        longer = [*sums, *[0] * rank]
        for total, subsets in enumerate(sums):
            longer[total + rank] += subsets
        sums = longer
    return tuple(sums)


# A hog holds this share of a GPU's memory in %, measured over these minutes.
HOG_PCT, HOG_MINUTES = 80.0, 10.0
# A leak grows by this much in an hour, measured over this time, and this part of all pairs of
# points rises (Mann–Kendall).
LEAK_GIB_PER_HOUR, LEAK_MINUTES, LEAK_RISING_PCT = 1.0, 60.0, 85.0
# Idle memory: at least this size, at less than this mean use in %, so that an occasional keep-alive
# still counts as idle.
IDLE_GIB, IDLE_PCT = 1.0, 2.0
# Other users' use in % of a GPU that idle memory keeps from them.
IDLE_BUSY_PCT = 30.0
# Orphaned memory: at least this size for this time.
ORPHANED_GIB, ORPHANED_MINUTES = 1.0, 10.0
# Number of points of the window from which a leak is detected.
POINTS = 20
# A leak is told from memory that rises and falls by chance with up to so many points.
MOST_POINTS = 60
# Among processes whose memory rises and falls by chance, at most 1 % may count as leaks in 2 h, in
# which their growth is tested again and again.
FALSE_ALARMS = 0.0001
# Window in which other users' use makes a GPU count as busy.
BESIDE_S = 600.0
# An open incident stays open above this part of the threshold.
KEEPS = 0.9


def memory_hog(
    inputs: RuleInput, policy: MemoryPolicy, reported: Collection[str]
) -> Iterator[Finding]:
    """A user holds most of a GPU's memory. `reported`: groups that hog its time already."""
    if not policy.hog_on:
        return
    seconds = HOG_MINUTES * 60
    for group in inputs.groups:
        total, now = group.gpu.memory_total_bytes, group.memory_bytes
        used = group.series.last(seconds)
        least = held_bytes(used, now)
        if group.key in reported or not total or now is None or least is None:
            continue
        if 100 * least / total <= HOG_PCT * KEEPS:
            continue
        above = 100 * least / total > HOG_PCT
        yield Finding(
            rule=MEMORY_HOG,
            key=group.key,
            since_t=max(group.series.begin, group.series.end - seconds),
            opens=above and inputs.t - group.series.begin >= seconds,
            gpu=group.gpu,
            process=main_process(group, inputs, seconds),
            user=group.user,
            container=group.container,
            pct=100 * now / total,
            peak_pct=100 * now / total,
            coverage=used.memory_coverage,
            memory_bytes=now,
            processes=len(group.processes),
        )


def leaks(inputs: RuleInput, policy: MemoryPolicy) -> Iterator[Finding]:
    """A process outside jobs whose memory only grows."""
    if not policy.leak_on:
        return
    seconds = LEAK_MINUTES * 60
    for group in inputs.groups:
        for process in group.processes:
            series = inputs.series.get(key_of(process))
            if series is None or series.span_s < seconds * KEEPS:
                continue
            growth = _growth(series, seconds)
            if growth is None:
                continue
            per_h = growth.slope * 3600
            steady = 100 * growth.rising >= LEAK_RISING_PCT
            enough = per_h >= LEAK_GIB_PER_HOUR * GIB and series.span_s >= seconds
            opens = enough and steady and _is_certain(series, seconds)
            yield _of_process(LEAK, inputs, group, process, series.end - seconds, opens, per_h)


def _growth(series: Series, seconds: float) -> Trend | None:
    """The trend if it is at least half of what opens an incident; cheap checks come first."""
    end, step = series.end, seconds / POINTS
    first = series.over(end - seconds, end - seconds + step).memory_bytes
    last = series.over(end - step, end).memory_bytes
    least = LEAK_GIB_PER_HOUR * GIB / 2
    if first is None or last is None or last - first < least * seconds / 3600:
        return None
    window = series.last(seconds)
    if window.memory_known_s < window.span_s * COVERAGE_PCT / 100:
        return None
    points = _points(series, step, POINTS)
    line = trend(points)
    return line if line and line.slope * 3600 >= least and line.rising > 0.5 else None


def _points(series: Series, step: float, count: int) -> list[tuple[float, float]]:
    """(begin, mean memory) of the last steps, oldest first, where it is known."""
    begins = [series.end - place * step for place in range(count, 0, -1)]
    means = [(begin, series.over(begin, begin + step).memory_bytes) for begin in begins]
    return [(begin, value) for begin, value in means if value is not None]


def _is_certain(series: Series, seconds: float) -> bool:
    """Whether the memory grew by more than chance since the begin of the series."""
    step = seconds / POINTS
    count = min(MOST_POINTS, int(series.span_s / step)) if step > 0 else 0
    values = [value for _, value in _points(series, step, count)]
    return chance_of_growth(b - a for a, b in pairwise(values)) <= FALSE_ALARMS


def idle_held(inputs: RuleInput, policy: MemoryPolicy) -> Iterator[Finding]:
    """A process outside jobs holds memory without using the GPU, while other users need the GPU.

    Its mean use over the whole time decides, so a short burst does not count as use.
    """
    if not policy.idle_on:
        return
    seconds = policy.idle_minutes * 60
    for group in inputs.groups:
        for process in group.processes:
            series = inputs.series.get(key_of(process))
            if series is None or (process.memory_bytes or 0) < IDLE_GIB * GIB:
                continue
            used = series.last(seconds)
            if used.pct is None or used.pct >= 2 * IDLE_PCT:
                continue
            if not is_covered(used) or inputs.t - series.end > STALE_S:
                continue
            since = _idle_since(series, used.pct)
            opens = (
                since is not None
                and inputs.t - since >= seconds
                and _is_needed_by_others(group, inputs)
            )
            yield _of_process(
                IDLE_HELD, inputs, group, process, since or series.end - seconds, opens
            )


def _idle_since(series: Series, pct: float) -> float | None:
    if pct >= IDLE_PCT:
        return None
    return quiet_since(series, IDLE_PCT, COVERAGE_PCT / 100)


def _is_needed_by_others(group: Group, inputs: RuleInput) -> bool:
    """Whether other users work on that GPU or wait for it."""
    if inputs.waiting_for(group.gpu.uuid, group.owner):
        return True
    busy = 0.0
    parts = (*inputs.groups, *(part for parts in inputs.jobs.values() for part in parts))
    for other in parts:
        if other.gpu.uuid == group.gpu.uuid and other.owner != group.owner:
            busy += other.series.last(BESIDE_S).pct or 0.0
    return busy >= IDLE_BUSY_PCT


def orphaned(inputs: RuleInput, policy: MemoryPolicy) -> Iterator[Finding]:
    """Memory that no listed process holds, for long.

    No user is accused; an operator has to look.
    """
    if not policy.orphaned_on:
        return
    for gpu in inputs.gpus:
        since, size = gpu.orphaned_since, gpu.orphaned_bytes
        if since is None or not size:
            continue
        least = ORPHANED_GIB * GIB
        if size < least * KEEPS:
            continue
        total = gpu.memory_total_bytes
        pct = 100 * size / total if total else None
        yield Finding(
            rule=ORPHANED,
            key=gpu.uuid,
            since_t=since.timestamp(),
            opens=size >= least and inputs.t - since.timestamp() >= ORPHANED_MINUTES * 60,
            gpu=gpu,
            pct=pct,
            peak_pct=pct,
            memory_bytes=size,
            processes=0,
        )


def _of_process(
    rule: str,
    inputs: RuleInput,
    group: Group,
    process: ProcessReading,
    since_t: float,
    opens: bool,
    growth_per_h: float | None = None,
) -> Finding:
    series = inputs.series[key_of(process)]
    used = series.over(since_t)
    known_s = used.memory_known_s if rule == LEAK else used.known_s
    return Finding(
        rule=rule,
        key=f"{group.gpu.uuid}|{process.pid}-{process.start_ticks or 0}",
        since_t=since_t,
        opens=opens,
        gpu=group.gpu,
        process=process,
        user=process.user,
        container=process.container,
        pct=used.pct,
        peak_pct=used.pct,
        coverage=min(1.0, known_s / used.span_s) if used.span_s else None,
        memory_bytes=process.memory_bytes,
        growth_per_h=growth_per_h,
    )
