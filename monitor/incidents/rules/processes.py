"""Rules on the GPU time and the GPU memory of processes.

`moving` applies the rule `sustained` to the whole host, for use that moves from GPU to GPU.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import combinations, pairwise
from statistics import median

from msgspec import Struct

from monitor.facts.formats import GIB
from monitor.facts.incidents import FAIR_SHARE, IDLE_HELD, LEAK, MEMORY_HOG, ORPHANED, SUSTAINED
from monitor.facts.readings import Health
from monitor.incidents.policy.findings import (
    COVERAGE_PCT,
    Finding,
    GpuTimePolicy,
    Group,
    MachineShare,
    MemoryPolicy,
    RuleInput,
    key_of,
    of_group,
    of_process,
)
from monitor.incidents.policy.usage_series import Series, UsagePoint, above_since, quiet_since

# GPU time: sustained use by one user, and more than the fair share.


# Use above the fair share opens an incident above this tolerance in % of the machine, measured over
# this time, if other users have waited this long.
FAIR_MARGIN_PCT, FAIR_MINUTES, FAIR_WAIT_MINUTES = 5.0, 10.0, 1.0
# The maximum age of the last accounting of a process.
STALE_S = 30.0
# The GPU with the most use in this time is the one that a user has moved to.
RECENT_S = 10.0
# A pause of a second does not affect the peak.
LEAST_SEGMENT_S = 2.0


def sustained(inputs: RuleInput, policy: GpuTimePolicy) -> Iterator[Finding]:
    """A user keeps a GPU busy for long, outside jobs."""
    if not policy.sustained_on:
        return
    seconds = policy.sustained_minutes * 60
    for group in inputs.groups:
        if inputs.t - group.series.end > STALE_S:
            continue
        recent = group.series.last(seconds)
        if recent.pct is None or not is_covered(recent):
            continue
        if recent.pct > policy.sustained_clear_pct:
            yield _sustained(group, inputs, recent, seconds, policy)


def _sustained(
    group: Group, inputs: RuleInput, recent: UsagePoint, seconds: float, policy: GpuTimePolicy
) -> Finding:
    since = _above_since(group.series, recent, policy)
    begin = group.series.end - seconds if since is None else since
    share = share_of(group.user, inputs, seconds) if group.user else None
    return of_group(
        SUSTAINED,
        group,
        inputs,
        seconds,
        recent.pct,
        since_t=begin,
        opens=since is not None and inputs.t - begin >= seconds,
        peak_pct=_peak(group, begin),
        expected_pct=expected_of(group.user, inputs),
        measured_pct=share.pct if share else None,
        coverage=recent.coverage,
    )


def _above_since(series: Series, recent: UsagePoint, policy: GpuTimePolicy) -> float | None:
    """Since when the mean has been above the threshold; None: it is not above."""
    if recent.pct is None or recent.pct <= policy.sustained_pct:
        return None
    coverage = COVERAGE_PCT / 100
    above = above_since(series, policy.sustained_pct, policy.sustained_clear_pct, coverage)
    return above[0] if above else None


def fair_share(inputs: RuleInput, policy: GpuTimePolicy) -> Iterator[Finding]:
    """A user exceeds the own share of the machine while other users wait for theirs."""
    if not policy.fair_on:
        return
    seconds = FAIR_MINUTES * 60
    people: dict[str, list[Group]] = {}
    for group in inputs.groups:
        if group.user:
            people.setdefault(group.user, []).append(group)
    for user, groups in people.items():
        expected = expected_of(user, inputs)
        share = share_of(user, inputs, seconds)
        if expected is None or share is None or 100 * share.coverage < COVERAGE_PCT:
            continue
        if share.pct <= expected:
            continue
        most = max(groups, key=lambda g: (round(g.series.last(seconds).sm_s), -g.gpu.index))
        waits_s = max(inputs.t - d.since.timestamp() for d in inputs.waiting_for(None, user))
        above = share.pct > expected + FAIR_MARGIN_PCT
        yield of_group(
            FAIR_SHARE,
            most,
            inputs,
            seconds,
            share.pct,
            key=user,
            since_t=inputs.t - seconds,
            opens=above and waits_s >= FAIR_WAIT_MINUTES * 60,
            expected_pct=expected,
            measured_pct=share.pct,
            coverage=share.coverage,
            processes=sum(len(group.processes) for group in groups),
            gpus=tuple(sorted({group.gpu.index for group in groups})),
        )


def share_of(user: str, inputs: RuleInput, seconds: float) -> MachineShare | None:
    """The user's part of the machine: all GPUs, with and without jobs. It is computed once."""
    key = (user, seconds)
    if key not in inputs.machine_shares:
        inputs.machine_shares[key] = _share_of(user, inputs, seconds)
    return inputs.machine_shares[key]


def _share_of(user: str, inputs: RuleInput, seconds: float) -> MachineShare | None:
    count = sum(gpu.health is Health.OK for gpu in inputs.gpus)
    if not count or seconds <= 0:
        return None
    mine = [group for group in inputs.groups if group.user == user]
    mine += [group for parts in inputs.jobs.values() for group in parts if group.owner == user]
    by_gpu: dict[str, float] = {}
    held_s = known_s = 0.0
    for group in mine:
        # Time before the process started counts as unused.
        used = group.series.over(inputs.t - seconds)
        by_gpu[group.gpu.uuid] = by_gpu.get(group.gpu.uuid, 0.0) + used.sm_s
        held_s += used.span_s
        known_s += used.known_s
    used_s = sum(min(seconds, sm_s) for sm_s in by_gpu.values())
    return MachineShare(
        100 * used_s / (count * seconds), min(1.0, known_s / held_s) if held_s else 0.0
    )


def expected_of(user: str | None, inputs: RuleInput) -> float | None:
    """The user's fair share in percent of the machine. None: no other user waits, or unknown."""
    return inputs.shares.get(user or "") if inputs.waiting_for(None, user) else None


def is_covered(used: UsagePoint) -> bool:
    """Whether enough of the window is known to accuse a user."""
    return 100 * used.coverage >= COVERAGE_PCT


def held_bytes(used: UsagePoint, now: int | None) -> float | None:
    """The memory held throughout: the mean, or the current value if that is less. None: unknown."""
    if used.memory_bytes is None or now is None:
        return None
    is_known = 100 * used.memory_coverage >= COVERAGE_PCT
    return min(float(now), used.memory_bytes) if is_known else None


def _peak(group: Group, since: float) -> float | None:
    return max(
        (
            pct
            for _, used in group.series.segments(since)
            if used.span_s >= LEAST_SEGMENT_S and (pct := used.pct) is not None
        ),
        default=None,
    )


# A user with this part of the window on a single GPU is handled by `sustained`.
STAYS = 0.9


def moving(
    inputs: RuleInput, policy: GpuTimePolicy, reported: Mapping[str, Collection[str]]
) -> Iterator[Finding]:
    """A user keeps one GPU after another busy.

    `reported`: the GPUs of each user with an incident of `sustained`. The others are judged.
    """
    if not policy.sustained_on:
        return
    seconds = policy.sustained_minutes * 60
    for user in sorted({group.user for group in inputs.groups if group.user}):
        ranks, used = inputs.in_turn.get(user, ()), inputs.series_of.get(user, {})
        if len(used) < 2 or not ranks:
            continue
        # Few users are so busy; the others are left out before their GPUs are looked at.
        if all((rank.last(seconds).pct or 0.0) <= policy.sustained_clear_pct for rank in ranks):
            continue
        stays = {*reported.get(user, ())} | {
            uuid
            for uuid, parts in used.items()
            if _sm_s(parts, inputs.t - seconds) > STAYS * seconds
        }
        if len(stays) < len(ranks):
            finding = _moving(user, inputs, policy, ranks[len(stays)], stays)
            if finding is not None:
                yield finding


def _moving(
    user: str, inputs: RuleInput, policy: GpuTimePolicy, series: Series, stays: Collection[str]
) -> Finding | None:
    seconds = policy.sustained_minutes * 60
    recent = series.last(seconds)
    here = [g for g in inputs.groups if g.user == user and g.gpu.uuid not in stays]
    if not here or recent.pct is None or recent.pct <= policy.sustained_clear_pct:
        return None
    if not is_covered(recent) or inputs.t - series.end > STALE_S:
        return None
    since = _above_since(series, recent, policy)
    begin = series.end - seconds if since is None else since
    used = inputs.series_of[user]
    indices = {
        gpu.index
        for gpu in inputs.gpus
        if gpu.uuid not in stays and _sm_s(used.get(gpu.uuid, ()), series.end - seconds) > 0
    }
    most = max(here, key=lambda group: (group.series.last(RECENT_S).sm_s, -group.gpu.index))
    share = share_of(user, inputs, seconds)
    return of_group(
        SUSTAINED,
        most,
        inputs,
        seconds,
        recent.pct,
        key=f"{user}|moves",
        since_t=begin,
        opens=since is not None and series.end - begin >= seconds,
        expected_pct=expected_of(user, inputs),
        measured_pct=share.pct if share else None,
        coverage=recent.coverage,
        processes=sum(len(group.processes) for group in here),
        gpus=tuple(sorted(indices)),
    )


def _sm_s(parts: Sequence[Series], since: float) -> float:
    return sum(part.over(since).sm_s for part in parts)


class Trend(Struct, frozen=True):
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
        yield of_group(
            MEMORY_HOG,
            group,
            inputs,
            seconds,
            100 * now / total,
            since_t=max(group.series.begin, group.series.end - seconds),
            opens=above and inputs.t - group.series.begin >= seconds,
            coverage=used.memory_coverage,
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
            since = series.end - seconds
            used = series.over(since)
            yield of_process(
                LEAK,
                group.gpu,
                process,
                used.pct,
                since_t=since,
                opens=opens,
                coverage=used.memory_coverage if used.span_s else None,
                growth_per_h=per_h,
            )


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
            is_idle = used.pct < IDLE_PCT
            since = quiet_since(series, IDLE_PCT, COVERAGE_PCT / 100) if is_idle else None
            opens = (
                since is not None
                and inputs.t - since >= seconds
                and _is_needed_by_others(group, inputs)
            )
            begin = since or series.end - seconds
            used = series.over(begin)
            yield of_process(
                IDLE_HELD,
                group.gpu,
                process,
                used.pct,
                since_t=begin,
                opens=opens,
                coverage=used.coverage if used.span_s else None,
            )


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
