"""All rules on one scene."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

from monitor.policy import claim_hogs, hogs, memory_hogs
from monitor.policy import hog_rules as rules
from monitor.policy.findings import Finding, Scene, key_of
from monitor.policy.hog_policies import ClaimPolicy, HogPolicy, MemoryPolicy
from monitor.policy.sparing import Exempt, spared_from
from monitor.policy.use_series import Series
from monitor.readings import Health


@dataclass(frozen=True, slots=True)
class Policies:
    """The thresholds of all rules, and who is exempt from them."""

    hogs: HogPolicy = field(default_factory=HogPolicy)
    memory: MemoryPolicy = field(default_factory=MemoryPolicy)
    claims: ClaimPolicy = field(default_factory=ClaimPolicy)
    exempt: tuple[Exempt, ...] = ()


def findings(
    scene: Scene, policies: Policies, going_on: Collection[tuple[str, str]] = ()
) -> list[Finding]:
    """What the rules find, without those who are exempt from the one that found them.

    `going_on`: (rule, key) of what is open.
    """
    p = policies
    sustained = list(hogs.sustained(scene, p.hogs))
    told = {
        finding.key
        for finding in sustained
        if finding.opens or (finding.rule, finding.key) in going_on
    }
    found = [
        *sustained,
        *hogs.fair_share(scene, p.hogs),
        *memory_hogs.memory_hog(scene, p.memory, p.hogs, told),
        *memory_hogs.leaks(scene, p.memory, p.hogs),
        *memory_hogs.idle_held(scene, p.memory, p.hogs),
        *memory_hogs.orphaned(scene, p.memory),
        *claim_hogs.claimed_empty(scene, p.claims, p.hogs),
        *claim_hogs.unused_gpus(scene, p.claims, p.hogs),
        *claim_hogs.over_memory(scene, p.claims, p.hogs),
        *claim_hogs.extra_gpus(scene, p.claims, p.hogs),
        *claim_hogs.unclaimed(scene, p.claims, p.hogs),
    ]
    return [finding for finding in found if not _spared(finding, p.exempt)]


def present(scene: Scene) -> set[str]:
    """The keys under which those who are there now may stand in an incident.

    Of a GPU that can't be read its own: nobody knows whether they are still there.
    """
    keys: set[str] = {
        gpu.uuid for gpu in scene.gpus if gpu.orphaned_bytes or gpu.health is not Health.OK
    }
    for ref, parts in scene.jobs.items():
        keys.add(f"job {ref}")
        keys |= {part.key for part in parts}
    for group in scene.groups:
        keys.add(group.key)
        keys |= {group.user} if group.user else set()
        keys |= {f"{group.gpu.uuid}|{p.pid}-{p.start_ticks or 0}" for p in group.processes}
    return keys


def unsure(
    scene: Scene, policies: Policies, going_on: Collection[tuple[str, str]]
) -> set[tuple[str, str]]:
    """Those that go on, of whom too little is known now to say that they have stopped."""
    windows, found = _windows(policies), _series_by_key(scene) if going_on else {}
    measured = {
        (rule, key)
        for rule, key in going_on
        if rule in windows
        and any(
            _is_unsure(series, rule, windows[rule] * 60, scene, policies.hogs)
            for series in found.get(key, ())
        )
    }
    return measured | {(rules.CLAIMED_EMPTY, f"job {ref}") for ref in _half_seen(scene, policies)}


def _half_seen(scene: Scene, policies: Policies) -> Iterator[str]:
    """Jobs without a process, as far as anybody can tell."""
    for ref, parts in scene.jobs.items():
        found = [scene.empty.get((ref, part.gpu.uuid)) for part in parts]
        known = all(e and 100 * e.coverage >= policies.hogs.coverage_pct for e in found)
        if not known and not any(part.processes for part in parts):
            yield ref


def _windows(policies: Policies) -> dict[str, float]:
    """Over how many minutes each rule looks."""
    hogs, memory, claims = policies.hogs, policies.memory, policies.claims
    return {
        rules.SUSTAINED: hogs.sustained_minutes,
        rules.FAIR_SHARE: hogs.fair_minutes,
        rules.MEMORY_HOG: memory.hog_minutes,
        rules.LEAK: memory.leak_minutes,
        rules.IDLE_HELD: memory.idle_minutes,
        rules.UNUSED_GPUS: claims.unused_minutes,
        rules.OVER_MEMORY: claims.over_minutes,
        rules.EXTRA_GPUS: claims.over_minutes,
        rules.UNCLAIMED: claims.unclaimed_minutes,
    }


def _series_by_key(scene: Scene) -> dict[str, list[Series]]:
    """What a key stands for: a group, a person, a job, a job on a GPU, or a process."""
    found: dict[str, list[Series]] = {}
    parts = [part for parts in scene.jobs.values() for part in parts]
    for group in (*scene.groups, *parts):
        job = f"job {group.claim.job_ref}" if group.claim else None
        for key in filter(None, (group.key, group.user, job)):
            found.setdefault(key, []).append(group.series)
        for process in group.processes:
            key = f"{group.gpu.uuid}|{process.pid}-{process.start_ticks or 0}"
            found.setdefault(key, []).append(scene.series.get(key_of(process)) or Series())
    return found


def _is_unsure(series: Series, rule: str, seconds: float, scene: Scene, policy: HogPolicy) -> bool:
    since = max(scene.t - seconds, series.begin)
    used = series.over(since)
    of_memory = rule in (rules.MEMORY_HOG, rules.LEAK, rules.OVER_MEMORY)
    known_s = used.memory_known_s if of_memory else used.known_s
    return 100 * known_s < policy.coverage_pct * (scene.t - since)


def _spared(finding: Finding, exempt: Sequence[Exempt]) -> bool:
    program = finding.process.program if finding.process else None
    return any(
        spared_from(finding.rule, user, program, finding.container, exempt)
        for user in {finding.user, finding.job_owner}
    )
