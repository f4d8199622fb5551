"""All rules on one scene."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from monitor.policy import claim_hogs, hogs, memory_hogs
from monitor.policy.findings import Finding, Scene
from monitor.policy.hog_policies import ClaimPolicy, HogPolicy, MemoryPolicy
from monitor.policy.sparing import Exempt, spared_from
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


def _spared(finding: Finding, exempt: Sequence[Exempt]) -> bool:
    program = finding.process.program if finding.process else None
    return any(
        spared_from(finding.rule, user, program, finding.container, exempt)
        for user in {finding.user, finding.job_owner}
    )
