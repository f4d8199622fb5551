"""Rules on bookings, and the application of all incident rules."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

from msgspec import Struct, field

from monitor.facts import incidents as rules
from monitor.facts.accounts import ASLEEP, ClaimKind
from monitor.facts.formats import GIB
from monitor.facts.incidents import CLAIMED_EMPTY, EXTRA_GPUS, OVER_MEMORY, UNCLAIMED, UNUSED_GPUS
from monitor.facts.readings import Health
from monitor.incidents.policy.findings import (
    COVERAGE_PCT,
    BookingPolicy,
    EmptyBooking,
    ExemptionRule,
    Finding,
    GpuTimePolicy,
    Group,
    MemoryPolicy,
    RuleInput,
    is_exempt_from,
    key_of,
    of_group,
    of_process,
    process_key,
)
from monitor.incidents.policy.usage_series import Series
from monitor.incidents.rules import cpu as cpu_rules
from monitor.incidents.rules import processes as use_rules
from monitor.incidents.rules.processes import held_bytes, is_covered

# Minutes without a process of the holder: loading data and compiling take less.
EMPTY_MINUTES = 15.0
# A GPU of a job with several GPUs is unused below this mean use in %, over this time.
UNUSED_MINUTES, UNUSED_PCT = 30.0, 2.0
# Use beyond a booking counts after this time, above this tolerance in % of the booked memory.
OVER_MINUTES, OVER_MARGIN_PCT = 5.0, 10.0
# GiB on a GPU that is not booked: less is driver overhead or idle.
OVER_GIB = 1.0
# Use outside the queue counts after this time, with this memory or with these GPU-minutes of the
# last two hours.
UNCLAIMED_MINUTES, UNCLAIMED_GIB, UNCLAIMED_GPU_MINUTES = 10.0, 1.0, 30.0


def claimed_empty(inputs: RuleInput, policy: BookingPolicy) -> Iterator[Finding]:
    """A job holds GPUs on which it has no process."""
    if not policy.empty_on:
        return
    for ref, parts in inputs.jobs.items():
        checked = [_empty(part, ref, inputs, EMPTY_MINUTES * 60) for part in parts]
        empty_parts = [empty for empty in checked if empty is not None]
        # A job with a process on one of the GPUs, or with unknown processes, is not reported.
        if len(empty_parts) < len(parts):
            continue
        begin, coverage = max(e.since_t for e in empty_parts), min(e.coverage for e in empty_parts)
        yield _of_job(CLAIMED_EMPTY, ref, parts, begin, coverage=coverage)


def _empty(part: Group, ref: str, inputs: RuleInput, seconds: float) -> EmptyBooking | None:
    """The booking if it has had no process for `seconds` with sufficient coverage; else None."""
    if part.claim is not None and part.claim.phase == ASLEEP:
        # A sleeping model has left its GPU on purpose.
        return None
    booking = inputs.empty.get((ref, part.gpu.uuid))
    if booking is None or inputs.t - booking.since_t < seconds:
        return None
    return booking if 100 * booking.coverage >= COVERAGE_PCT else None


def unused_gpus(inputs: RuleInput, policy: BookingPolicy) -> Iterator[Finding]:
    """A job with several GPUs uses some of them, and others not."""
    if not policy.unused_on:
        return
    seconds = UNUSED_MINUTES * 60
    for ref, parts in inputs.jobs.items():
        if len(parts) < 2:
            continue
        idle = {part.key: _unused(part, ref, inputs, seconds) for part in parts}
        unused = [part for part in parts if idle[part.key] is not None]
        used = [part for part in parts if _is_used(part, seconds)]
        if unused and used:
            pct = max(part.series.last(seconds).pct or 0.0 for part in unused)
            coverages = [coverage for coverage in idle.values() if coverage is not None]
            yield _of_job(
                UNUSED_GPUS, ref, unused, inputs.t - seconds, pct=pct, coverage=min(coverages)
            )


def _unused(part: Group, ref: str, inputs: RuleInput, seconds: float) -> float | None:
    """The coverage (0..1) of the time in which the GPU was unused. None: it is used, or unknown."""
    if not part.processes:
        empty = _empty(part, ref, inputs, seconds)
        return empty.coverage if empty else None
    used = part.series.last(seconds)
    if used.pct is None or part.series.span_s < seconds or not is_covered(used):
        return None
    return used.coverage if used.pct < UNUSED_PCT else None


def _is_used(part: Group, seconds: float) -> bool:
    pct = part.series.last(seconds).pct
    return bool(part.processes) and pct is not None and pct >= UNUSED_PCT


def over_memory(inputs: RuleInput, policy: BookingPolicy) -> Iterator[Finding]:
    """A job that shares its GPU holds more memory there than it requested."""
    if not policy.over_on:
        return
    seconds = OVER_MINUTES * 60
    for ref, parts in inputs.jobs.items():
        for part in parts:
            claim, now = part.claim, part.memory_bytes
            if claim is None or claim.exclusive or not claim.memory_bytes or now is None:
                continue
            used = part.series.last(seconds)
            least = held_bytes(used, now)
            if part.series.span_s < seconds or least is None or least <= claim.memory_bytes:
                continue
            margin = 1 + OVER_MARGIN_PCT / 100
            yield _of_job(
                OVER_MEMORY,
                ref,
                [part],
                inputs.t - seconds,
                opens=least > claim.memory_bytes * margin,
                coverage=used.memory_coverage,
                pct=100 * now / claim.memory_bytes,
                memory_bytes=now,
                booked_bytes=claim.memory_bytes,
                key=f"{part.gpu.uuid}|job {ref}",
            )


def extra_gpus(inputs: RuleInput, policy: BookingPolicy) -> Iterator[Finding]:
    """A process of a job works on a GPU that the job has not booked."""
    if not policy.over_on:
        return
    seconds = OVER_MINUTES * 60
    for group in inputs.strays:
        for process in group.processes:
            series = inputs.series.get(key_of(process))
            if not process.job_ref or series is None or series.span_s < seconds:
                continue
            used = series.last(seconds)
            big = (held_bytes(used, process.memory_bytes) or 0.0) >= OVER_GIB * GIB
            works = is_covered(used) and (used.pct or 0.0) >= UNUSED_PCT
            if big or works:
                yield of_process(
                    EXTRA_GPUS,
                    group.gpu,
                    process,
                    used.pct,
                    since_t=series.begin,
                    job_ref=process.job_ref,
                    job_owner=process.job_owner,
                    coverage=used.coverage if works else used.memory_coverage,
                )


def unclaimed(inputs: RuleInput, policy: BookingPolicy) -> Iterator[Finding]:
    """A user uses a GPU without a job, although all use must be booked."""
    if not policy.unclaimed_on:
        return
    seconds = UNCLAIMED_MINUTES * 60
    for group in inputs.groups:
        if group.series.span_s < seconds or any(p.job_ref for p in group.processes):
            continue
        used, whole = group.series.last(seconds), group.series.over(0.0)
        minutes = whole.sm_s / 60
        big = (held_bytes(used, group.memory_bytes) or 0.0) > UNCLAIMED_GIB * GIB
        much = is_covered(whole) and minutes > UNCLAIMED_GPU_MINUTES
        if not big and not much:
            continue
        yield of_group(
            UNCLAIMED,
            group,
            inputs,
            seconds,
            used.pct,
            since_t=group.series.begin,
            coverage=whole.coverage if much else used.memory_coverage,
            gpu_minutes=minutes,
        )


def _of_job(
    rule: str,
    ref: str,
    parts: Sequence[Group],
    since_t: float,
    pct: float | None = None,
    **figures: Any,
) -> Finding:
    first = min(parts, key=lambda part: part.gpu.index)
    owner = next((part.claim.owner for part in parts if part.claim), None)
    claim = first.claim
    model = claim.task if claim is not None and claim.kind is ClaimKind.LLM else ""
    processes = [process for part in parts for process in part.processes]
    values: dict[str, Any] = {
        "key": f"job {ref}",
        "gpu": first.gpu,
        "process": processes[0] if processes else None,
        "job_ref": ref,
        "job_owner": owner,
        "pct": pct,
        "peak_pct": pct,
        "processes": len(processes),
        "gpus": tuple(sorted(part.gpu.index for part in parts)),
        "model": model,
    }
    return Finding(rule=rule, since_t=since_t, **values | figures)


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
    sustained = run(rules.SUSTAINED, lambda: use_rules.sustained(inputs, p.hogs))
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
        rules.FAIR_SHARE: lambda: use_rules.fair_share(inputs, p.hogs),
        rules.LEAK: lambda: use_rules.leaks(inputs, p.memory),
        rules.IDLE_HELD: lambda: use_rules.idle_held(inputs, p.memory),
        rules.ORPHANED: lambda: use_rules.orphaned(inputs, p.memory),
        rules.CLAIMED_EMPTY: lambda: claimed_empty(inputs, p.claims),
        rules.UNUSED_GPUS: lambda: unused_gpus(inputs, p.claims),
        rules.OVER_MEMORY: lambda: over_memory(inputs, p.claims),
        rules.EXTRA_GPUS: lambda: extra_gpus(inputs, p.claims),
        rules.UNCLAIMED: lambda: unclaimed(inputs, p.claims),
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
        MOVING: lambda: use_rules.moving(inputs, p.hogs, stays),
        rules.MEMORY_HOG: lambda: use_rules.memory_hog(inputs, p.memory, reported),
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
        keys |= {process_key(process) for process in group.processes}
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
        rules.FAIR_SHARE: use_rules.FAIR_MINUTES,
        rules.MEMORY_HOG: use_rules.HOG_MINUTES,
        rules.LEAK: use_rules.LEAK_MINUTES,
        rules.IDLE_HELD: policies.memory.idle_minutes,
        rules.UNUSED_GPUS: UNUSED_MINUTES,
        rules.OVER_MEMORY: OVER_MINUTES,
        rules.EXTRA_GPUS: OVER_MINUTES,
        rules.UNCLAIMED: UNCLAIMED_MINUTES,
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
    margin = use_rules.FAIR_MARGIN_PCT
    opens_at = {
        rules.SUSTAINED: policies.hogs.sustained_pct,
        rules.FAIR_SHARE: None if expected_pct is None else expected_pct + margin,
        rules.IDLE_HELD: use_rules.IDLE_PCT,
        rules.UNUSED_GPUS: UNUSED_PCT,
        rules.MEMORY_HOG: use_rules.HOG_PCT,
        rules.OVER_MEMORY: 100 + OVER_MARGIN_PCT,
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
            series = inputs.series.get(key_of(process)) or Series()
            series_by_key.setdefault(process_key(process), []).append(series)
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
