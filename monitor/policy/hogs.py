"""The rules on the GPUs' time: sustained use by one person, and more than the fair share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from monitor.policy.findings import Finding, Group, Scene, main_process
from monitor.policy.hog_policies import HogPolicy
from monitor.policy.hog_rules import FAIR_SHARE, SUSTAINED
from monitor.policy.use_series import Used, stretch
from monitor.readings import Health

# The last look at the account of a process may be so old.
STALE_S = 30.0
# An idle moment of a second says nothing about the peak.
LEAST_SEGMENT_S = 2.0


@dataclass(frozen=True, slots=True)
class Share:
    """A person's part of all GPUs of the machine over some time, in percent."""

    pct: float
    coverage: float


def sustained(scene: Scene, policy: HogPolicy) -> Iterator[Finding]:
    """One person keeps a GPU busy, outside of jobs, for long."""
    if not policy.sustained_on:
        return
    seconds = policy.sustained_minutes * 60
    for group in scene.groups:
        if scene.t - group.series.end > STALE_S:
            continue
        recent = group.series.last(seconds)
        if recent.pct is None or not known_enough(recent, policy):
            continue
        if recent.pct > policy.sustained_clear_pct:
            yield _sustained(group, scene, recent, seconds, policy)


def _sustained(
    group: Group, scene: Scene, recent: Used, seconds: float, policy: HogPolicy
) -> Finding:
    found = None
    if recent.pct is not None and recent.pct > policy.sustained_pct:
        found = stretch(
            group.series,
            policy.sustained_pct,
            policy.sustained_clear_pct,
            policy.coverage_pct / 100,
        )
    begin = found[0] if found else group.series.end - seconds
    share = share_of(group.user, scene, seconds) if group.user else None
    return Finding(
        rule=SUSTAINED,
        key=group.key,
        since_t=begin,
        opens=found is not None and scene.t - begin >= seconds,
        gpu=group.gpu,
        process=main_process(group, scene, seconds),
        user=group.user,
        container=group.container,
        pct=recent.pct,
        peak_pct=_peak(group, begin),
        expected_pct=expected_of(group.user, scene, policy),
        measured_pct=share.pct if share else None,
        coverage=recent.coverage,
        memory_bytes=group.memory_bytes,
        processes=len(group.processes),
    )


def fair_share(scene: Scene, policy: HogPolicy) -> Iterator[Finding]:
    """A person takes so much of the machine that those who wait can't get theirs."""
    if not policy.fair_on:
        return
    seconds = policy.fair_minutes * 60
    people: dict[str, list[Group]] = {}
    for group in scene.groups:
        if group.user:
            people.setdefault(group.user, []).append(group)
    for user, groups in people.items():
        expected = expected_of(user, scene, policy)
        share = share_of(user, scene, seconds)
        if expected is None or share is None or 100 * share.coverage < policy.coverage_pct:
            continue
        if share.pct <= expected:
            continue
        most = max(groups, key=lambda group: _most(group, seconds))
        waits_s = max(scene.t - d.since.timestamp() for d in scene.waiting_for(None, user))
        above = share.pct > expected + policy.fair_margin_pct
        yield Finding(
            rule=FAIR_SHARE,
            key=user,
            since_t=scene.t - seconds,
            opens=above and waits_s >= policy.fair_wait_minutes * 60,
            gpu=most.gpu,
            process=main_process(most, scene, seconds),
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


def share_of(user: str, scene: Scene, seconds: float) -> Share | None:
    """What a person took of the machine: all that they have on GPUs, booked or not."""
    count = sum(gpu.health is Health.OK for gpu in scene.gpus)
    if not count or seconds <= 0:
        return None
    mine = [group for group in scene.groups if group.user == user]
    mine += [group for parts in scene.jobs.values() for group in parts if group.who == user]
    by_gpu: dict[str, float] = {}
    held = known = 0.0
    for group in mine:
        # Seconds before it came count as not used.
        used = group.series.over(scene.t - seconds)
        by_gpu[group.gpu.uuid] = by_gpu.get(group.gpu.uuid, 0.0) + used.sm_s
        held += used.span_s
        known += used.known_s
    taken = sum(min(seconds, sm_s) for sm_s in by_gpu.values())
    return Share(100 * taken / (count * seconds), min(1.0, known / held) if held else 0.0)


def expected_of(user: str | None, scene: Scene, policy: HogPolicy) -> float | None:
    """What those who wait leave to a person, in percent of the machine; None: nobody waits."""
    waiting: dict[str, float] = {}
    own = policy.fair_entitled_pct
    for wish in scene.demand:
        share = policy.fair_entitled_pct if wish.share_pct is None else wish.share_pct
        if wish.owner == user:
            own = share
        else:
            waiting[wish.owner] = share
    return max(own, 100 - sum(waiting.values())) if waiting else None


def known_enough(used: Used, policy: HogPolicy) -> bool:
    """Nobody is accused on less."""
    return 100 * used.coverage >= policy.coverage_pct


def held(used: Used, now: int | None, policy: HogPolicy) -> float | None:
    """The memory held all the time: the mean, or less when it is less now; None: unknown."""
    if used.memory_bytes is None or now is None:
        return None
    known = 100 * used.memory_coverage >= policy.coverage_pct
    return min(float(now), used.memory_bytes) if known else None


def _peak(group: Group, since: float) -> float | None:
    return max(
        (
            used.pct
            for _, used in group.series.segments(since)
            if used.pct is not None and used.span_s >= LEAST_SEGMENT_S
        ),
        default=None,
    )
