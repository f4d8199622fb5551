"""Rules on GPU time: sustained use by one user, and more than the fair share.

`moving` applies the rule `sustained` to the whole host, for use that moves from GPU to GPU.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from monitor.facts.readings import Health
from monitor.incidents.facts import FAIR_SHARE, SUSTAINED
from monitor.incidents.policy.findings import Finding, Group, MachineShare, RuleInput, main_process
from monitor.incidents.policy.thresholds import COVERAGE_PCT, GpuTimePolicy
from monitor.incidents.policy.usage_series import Series, UsagePoint, above_since

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
    above = None
    if recent.pct is not None and recent.pct > policy.sustained_pct:
        above = above_since(
            group.series,
            policy.sustained_pct,
            policy.sustained_clear_pct,
            COVERAGE_PCT / 100,
        )
    begin = above[0] if above else group.series.end - seconds
    share = share_of(group.user, inputs, seconds) if group.user else None
    return Finding(
        rule=SUSTAINED,
        key=group.key,
        since_t=begin,
        opens=above is not None and inputs.t - begin >= seconds,
        gpu=group.gpu,
        process=main_process(group, inputs, seconds),
        user=group.user,
        container=group.container,
        pct=recent.pct,
        peak_pct=_peak(group, begin),
        expected_pct=expected_of(group.user, inputs),
        measured_pct=share.pct if share else None,
        coverage=recent.coverage,
        memory_bytes=group.memory_bytes,
        processes=len(group.processes),
    )


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
        most = max(groups, key=lambda group: _most(group, seconds))
        waits_s = max(inputs.t - d.since.timestamp() for d in inputs.waiting_for(None, user))
        above = share.pct > expected + FAIR_MARGIN_PCT
        yield Finding(
            rule=FAIR_SHARE,
            key=user,
            since_t=inputs.t - seconds,
            opens=above and waits_s >= FAIR_WAIT_MINUTES * 60,
            gpu=most.gpu,
            process=main_process(most, inputs, seconds),
            user=user,
            container=most.container,
            pct=share.pct,
            peak_pct=share.pct,
            expected_pct=expected,
            measured_pct=share.pct,
            coverage=share.coverage,
            memory_bytes=most.memory_bytes,
            processes=sum(len(group.processes) for group in groups),
            gpus=tuple(sorted({group.gpu.index for group in groups})),
        )


def _most(group: Group, seconds: float) -> tuple[float, int]:
    return round(group.series.last(seconds).sm_s), -group.gpu.index


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
    above = None
    if recent.pct > policy.sustained_pct:
        above = above_since(
            series, policy.sustained_pct, policy.sustained_clear_pct, COVERAGE_PCT / 100
        )
    begin = above[0] if above else series.end - seconds
    used = inputs.series_of[user]
    indices = {
        gpu.index
        for gpu in inputs.gpus
        if gpu.uuid not in stays and _sm_s(used.get(gpu.uuid, ()), series.end - seconds) > 0
    }
    most = max(here, key=lambda group: (group.series.last(RECENT_S).sm_s, -group.gpu.index))
    share = share_of(user, inputs, seconds)
    return Finding(
        rule=SUSTAINED,
        key=f"{user}|moves",
        since_t=begin,
        opens=above is not None and series.end - begin >= seconds,
        gpu=most.gpu,
        process=main_process(most, inputs, seconds),
        user=user,
        container=most.container,
        pct=recent.pct,
        peak_pct=recent.pct,
        expected_pct=expected_of(user, inputs),
        measured_pct=share.pct if share else None,
        coverage=recent.coverage,
        memory_bytes=most.memory_bytes,
        processes=sum(len(group.processes) for group in here),
        gpus=tuple(sorted(indices)),
    )


def _sm_s(parts: Sequence[Series], since: float) -> float:
    return sum(part.over(since).sm_s for part in parts)
