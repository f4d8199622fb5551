"""Policy: which processes outside the queue used more than their owner is entitled to.

Listed is a known owner's process with enough hours at high use of a GPU above the entitlement,
if the use was measured well, and if either the owner's mean share of that GPU over the whole
period exceeds the entitlement, or jobs of other users waited 15 minutes meanwhile. Jobs within
their claim are never listed, and exempt users, programs and containers are not either.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from monitor.facts.readings import ProcessReading
from monitor.incidents.policy.exemptions import ExemptionRule, is_exempt, is_exempt_from
from monitor.incidents.policy.thresholds import GpuTimePolicy
from reports.figures.facts import Violation
from reports.figures.policy.ledger import ProcessSums, UseFact
from reports.figures.policy.thresholds import ReportPolicy

HOUR_S = 3600
# Of the period.
LEAST_PART = 0.01
# Of the waits of others that make short use a violation.
LEAST_WAIT_S = 900
# More processes of one user's program than this are one line.
MOST_LINES = 3


@dataclass(frozen=True, slots=True)
class Standards:
    """Limits that violations are judged by. entitled: percent by user name."""

    policy: ReportPolicy
    gpu_time: GpuTimePolicy
    exemptions: tuple[ExemptionRule, ...]
    entitled: Callable[[str], float]
    period_s: float


def violations(
    processes: Iterable[ProcessSums], names: Mapping[str, str], standards: Standards
) -> tuple[Violation, ...]:
    """Worst first. Short or many processes of one program count together. names: of GPUs."""
    groups: dict[tuple[str, str], list[ProcessSums]] = {}
    for sums in processes:
        if sums.sustained_s and _is_judged(sums.use, standards):
            groups.setdefault((sums.use.owner or "", sums.use.program), []).append(sums)
    violations = [v for group in groups.values() for v in _of_program(group, names, standards)]
    return tuple(sorted(violations, key=lambda v: (-v.hours, v.user or "", v.pid or 0)))


def _of_program(
    group: Sequence[ProcessSums], names: Mapping[str, str], standards: Standards
) -> list[Violation]:
    """Of one user's program: a few processes one by one, short or many processes together."""
    single = [(sums, _violation([sums], names, standards)) for sums in group]
    violations = [violation for _, violation in single if violation is not None]
    rest = [sums for sums, violation in single if violation is None]
    if len(violations) > MOST_LINES:
        violations, rest = [], list(group)
    together = _violation(rest, names, standards) if len(rest) > 1 else None
    return violations if together is None else [*violations, together]


def _violation(
    group: Sequence[ProcessSums], names: Mapping[str, str], standards: Standards
) -> Violation | None:
    policy, owner = standards.policy, group[0].use.owner or ""
    expected = standards.entitled(owner)
    high, sustained = sum(s.high_s for s in group), sum(s.sustained_s for s in group)
    seconds, level = sustained, policy.sustained_pct
    if high >= 0.5 * sustained:
        seconds, level = high, policy.high_pct
    held, known_s = sum(s.held_s for s in group), sum(s.known_s for s in group)
    coverage = known_s / held if held else 0.0
    # Processes at the same time delay the same jobs.
    waited = sum({t: s for sums in group for t, s in sums.waited.items()}.values())
    least = max(policy.violation_hours * HOUR_S, LEAST_PART * standards.period_s)
    is_enough = seconds >= least and expected < level
    if not is_enough or 100 * coverage < policy.coverage_pct:
        return None
    share = 100 * _busiest(group) / standards.period_s if standards.period_s else 0.0
    if share <= expected and waited < LEAST_WAIT_S:
        return None
    worst = max(group, key=lambda s: s.high_s)
    is_one = len(group) == 1
    return Violation(
        program=worst.use.program or "process",
        pid=worst.use.pid if is_one else None,
        user=owner,
        processes=len(group),
        hours=seconds / HOUR_S,
        above_pct=level,
        expected_pct=expected,
        mean_pct=100 * sum(s.sm_s for s in group) / known_s,
        coverage=coverage,
        waited_hours=waited / HOUR_S,
        gpus=tuple(dict.fromkeys(names.get(u, u) for s in group for u in s.gpus)),
        url=f"/processes/{worst.use.id}/",
    )


def _busiest(group: Iterable[ProcessSums]) -> float:
    """GPU-seconds on the GPU that they used most."""
    sums: dict[str, float] = {}
    for process in group:
        for gpu, seconds in process.gpus.items():
            sums[gpu] = sums.get(gpu, 0.0) + seconds
    return max(sums.values(), default=0.0)


def _is_judged(use: UseFact, standards: Standards) -> bool:
    """Only a known person's process that no exemption covers."""
    if not use.owner or use.is_job:
        return False
    reading = ProcessReading(
        gpu_uuid=use.gpu,
        pid=use.pid,
        start_ticks=use.start_ticks,
        uid=use.uid,
        user=use.owner,
        program=use.program or None,
        kinds="G",
        container=use.container or None,
    )
    listed = standards.exemptions
    if is_exempt(reading, standards.gpu_time, listed):
        return False
    subject = (use.owner, use.program or None, use.container or None)
    return not is_exempt_from("sustained", *subject, listed)


def line(violation: Violation) -> str:
    """ "python (PID 12345, alice): 18.5 hours at >90% (expected quota: 30%)"."""
    v = violation
    process = f"PID {v.pid}" if v.pid is not None else f"{v.processes} processes"
    user = v.user or "unknown owner"
    inside = user if v.is_anonymous else f"{process}, {user}"
    return (
        f"{v.program} ({inside}): {v.hours:.1f} hours at >{v.above_pct:g}%"
        f" (expected quota: {v.expected_pct:g}%)"
    )
