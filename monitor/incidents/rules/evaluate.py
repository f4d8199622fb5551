"""Apply all incident rules."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from msgspec import Struct, field

from monitor.facts import incidents as rules
from monitor.facts.readings import Health
from monitor.incidents.policy.findings import (
    COVERAGE_PCT,
    BookingPolicy,
    ExemptionRule,
    Finding,
    GpuTimePolicy,
    MemoryPolicy,
    RuleInput,
    is_exempt_from,
    key_of,
)
from monitor.incidents.policy.usage_series import Series
from monitor.incidents.rules import (
    bookings as booking_rules,
)
from monitor.incidents.rules import (
    cpu as cpu_rules,
)
from monitor.incidents.rules import processes as gpu_time_rules
from monitor.incidents.rules import processes as memory_rules
from monitor.incidents.rules.processes import moving

# Its findings are incidents of the rule `sustained`.
MOVING = "moving use"
Rule = Callable[[], Iterable[Finding]]
RunRule = Callable[[str, Rule], list[Finding] | None]


class IncidentPolicies(Struct, frozen=True):
    """The thresholds of all rules, and the exemptions."""

    hogs: GpuTimePolicy = field(default_factory=GpuTimePolicy)
    memory: MemoryPolicy = field(default_factory=MemoryPolicy)
    claims: BookingPolicy = field(default_factory=BookingPolicy)
    exempt: tuple[ExemptionRule, ...] = ()


def run_rule(_rule: str, action: Rule) -> list[Finding] | None:
    """Without isolation: a failing rule raises."""
    return list(action())


def findings(
    inputs: RuleInput,
    policies: IncidentPolicies,
    going_on: Collection[tuple[str, str]] = (),
    run: RunRule = run_rule,
) -> tuple[list[Finding], set[str]]:
    """(findings of all rules, without exempt ones; rules that failed).

    `going_on`: (rule, key) of open incidents. `run` returns None for a rule that fails.
    """
    p = policies
    sustained = run(rules.SUSTAINED, lambda: gpu_time_rules.sustained(inputs, p.hogs))
    by_rule: dict[str, list[Finding] | None] = {rules.SUSTAINED: sustained}
    for rule, action in _independent(inputs, p).items():
        by_rule[rule] = run(rule, action)
    # Without the findings of `sustained`, these two would report the same use again.
    for rule, dependent in _after_sustained(inputs, p, sustained or (), going_on).items():
        by_rule[rule] = None if sustained is None else run(rule, dependent)
    failed = {rule for rule, of_rule in by_rule.items() if of_rule is None}
    every = [finding for of_rule in by_rule.values() for finding in of_rule or ()]
    return [finding for finding in every if not _is_exempt(finding, p.exempt)], failed


def _independent(inputs: RuleInput, p: IncidentPolicies) -> dict[str, Rule]:
    return {
        rules.FAIR_SHARE: lambda: gpu_time_rules.fair_share(inputs, p.hogs),
        rules.LEAK: lambda: memory_rules.leaks(inputs, p.memory),
        rules.IDLE_HELD: lambda: memory_rules.idle_held(inputs, p.memory),
        rules.ORPHANED: lambda: memory_rules.orphaned(inputs, p.memory),
        rules.CLAIMED_EMPTY: lambda: booking_rules.claimed_empty(inputs, p.claims),
        rules.UNUSED_GPUS: lambda: booking_rules.unused_gpus(inputs, p.claims),
        rules.OVER_MEMORY: lambda: booking_rules.over_memory(inputs, p.claims),
        rules.EXTRA_GPUS: lambda: booking_rules.extra_gpus(inputs, p.claims),
        rules.UNCLAIMED: lambda: booking_rules.unclaimed(inputs, p.claims),
    }


def _after_sustained(
    inputs: RuleInput,
    p: IncidentPolicies,
    sustained: Sequence[Finding],
    going_on: Collection[tuple[str, str]],
) -> dict[str, Rule]:
    of_incidents = [f for f in sustained if f.opens or (f.rule, f.key) in going_on]
    reported = {finding.key for finding in of_incidents}
    stays: dict[str, set[str]] = {}
    for finding in of_incidents:
        if finding.user and finding.gpu:
            stays.setdefault(finding.user, set()).add(finding.gpu.uuid)
    return {
        MOVING: lambda: moving(inputs, p.hogs, stays),
        rules.MEMORY_HOG: lambda: memory_rules.memory_hog(inputs, p.memory, reported),
    }


def present_keys(inputs: RuleInput) -> set[str]:
    """The incident keys of present processes and bookings.

    A GPU that cannot be read counts as present: its processes are unknown.
    """
    keys: set[str] = {
        gpu.uuid for gpu in inputs.gpus if gpu.orphaned_bytes or gpu.health is not Health.OK
    }
    for ref, parts in inputs.jobs.items():
        keys.add(f"job {ref}")
        keys |= {part.key for part in parts}
    for group in inputs.groups:
        keys.add(group.key)
        keys |= {group.user} if group.user else set()
        keys |= {f"{group.gpu.uuid}|{p.pid}-{p.start_ticks or 0}" for p in group.processes}
    return keys


def undecided(
    inputs: RuleInput,
    policies: IncidentPolicies,
    going_on: Collection[tuple[str, str]],
    failed: Collection[str] = (),
) -> set[tuple[str, str]]:
    """The open incidents that lack the data to be closed now. `failed`: rules without a result."""
    unjudged = {rules.SUSTAINED if rule == MOVING else rule for rule in failed}
    windows, series_by_key = _windows(policies), _series_by_key(inputs) if going_on else {}
    measured = {
        (rule, key)
        for rule, key in going_on
        if rule in windows
        and any(
            _is_undecided(series, rule, windows[rule] * 60, inputs)
            for series in series_by_key.get(key, ())
        )
    }
    measured |= {name for name in going_on if name[0] in unjudged}
    return measured | {(rules.CLAIMED_EMPTY, f"job {ref}") for ref in _partly_observed_jobs(inputs)}


def _partly_observed_jobs(inputs: RuleInput) -> Iterator[str]:
    """Jobs without a known process, on GPUs with too little coverage."""
    for ref, parts in inputs.jobs.items():
        bookings = [inputs.empty.get((ref, part.gpu.uuid)) for part in parts]
        is_covered = all(e and 100 * e.coverage >= COVERAGE_PCT for e in bookings)
        if not is_covered and not any(part.processes for part in parts):
            yield ref


def _windows(policies: IncidentPolicies) -> dict[str, float]:
    """The window of each rule in minutes."""
    return {
        rules.SUSTAINED: policies.hogs.sustained_minutes,
        rules.FAIR_SHARE: gpu_time_rules.FAIR_MINUTES,
        rules.MEMORY_HOG: memory_rules.HOG_MINUTES,
        rules.LEAK: memory_rules.LEAK_MINUTES,
        rules.IDLE_HELD: policies.memory.idle_minutes,
        rules.UNUSED_GPUS: booking_rules.UNUSED_MINUTES,
        rules.OVER_MEMORY: booking_rules.OVER_MINUTES,
        rules.EXTRA_GPUS: booking_rules.OVER_MINUTES,
        rules.UNCLAIMED: booking_rules.UNCLAIMED_MINUTES,
    }


# The names in log lines of what the rules measure in percent.
_MEASURES = {
    rules.SUSTAINED: "gpu_util",
    rules.FAIR_SHARE: "gpu_util",
    rules.IDLE_HELD: "gpu_util",
    rules.UNUSED_GPUS: "gpu_util",
    rules.MEMORY_HOG: "memory_util",
    rules.OVER_MEMORY: "booked_memory_util",
    rules.CPU_HOG: "cpu_util",
}


def log_figures(
    rule: str, pct: float | None, expected_pct: float | None, policies: IncidentPolicies
) -> dict[str, float]:
    """The measure `pct` of an incident by its name, and the `threshold` at which the rule opens.

    Empty for rules that measure no percentage. expected_pct: the fair share.
    """
    margin = gpu_time_rules.FAIR_MARGIN_PCT
    opens_at = {
        rules.SUSTAINED: policies.hogs.sustained_pct,
        rules.FAIR_SHARE: None if expected_pct is None else expected_pct + margin,
        rules.IDLE_HELD: memory_rules.IDLE_PCT,
        rules.UNUSED_GPUS: booking_rules.UNUSED_PCT,
        rules.MEMORY_HOG: memory_rules.HOG_PCT,
        rules.OVER_MEMORY: 100 + booking_rules.OVER_MARGIN_PCT,
        rules.CPU_HOG: cpu_rules.CPU_PCT,
    }
    figures = {_MEASURES.get(rule, ""): pct, "threshold": opens_at.get(rule)}
    return {name: value for name, value in figures.items() if name and value is not None}


def _series_by_key(inputs: RuleInput) -> dict[str, list[Series]]:
    """The series that a key stands for: a group, a user, a job, a job on a GPU, or a process."""
    series_by_key: dict[str, list[Series]] = {}
    parts = [part for parts in inputs.jobs.values() for part in parts]
    for group in (*inputs.groups, *parts):
        job = f"job {group.claim.job_ref}" if group.claim else None
        for key in filter(None, (group.key, group.user, job)):
            series_by_key.setdefault(key, []).append(group.series)
        for process in group.processes:
            key = f"{group.gpu.uuid}|{process.pid}-{process.start_ticks or 0}"
            series_by_key.setdefault(key, []).append(inputs.series.get(key_of(process)) or Series())
    return series_by_key


def _is_undecided(series: Series, rule: str, seconds: float, inputs: RuleInput) -> bool:
    since = max(inputs.t - seconds, series.begin)
    used = series.over(since)
    of_memory = rule in (rules.MEMORY_HOG, rules.LEAK, rules.OVER_MEMORY)
    known_s = used.memory_known_s if of_memory else used.known_s
    return 100 * known_s < COVERAGE_PCT * (inputs.t - since)


def _is_exempt(finding: Finding, exempt: Sequence[ExemptionRule]) -> bool:
    program = finding.process.program if finding.process else None
    return any(
        is_exempt_from(finding.rule, user, program, finding.container, exempt)
        for user in {finding.user, finding.job_owner}
    )
