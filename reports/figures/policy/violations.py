"""Policy: heavy use of GPUs by processes outside the queue, and which of it is a violation.

A violation is a known owner's process with enough hours at high use, counted only while its owner
held more of the machine than the entitlement, and a job of another user waited that could have run
there. The owner must also be above the entitlement over the whole period, and have caused a wait of
15 minutes. All other heavy use is listed on its own, without blame. Jobs within their claim are
never listed, and exempt users, programs and containers are not either.

Thresholds of reports: what counts as a violation, and prices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from msgspec import Struct

from monitor.facts.readings import ProcessReading
from monitor.facts.thresholds import threshold
from monitor.incidents.policy.findings import (
    ExemptionRule,
    GpuTimePolicy,
    is_exempt,
    is_exempt_from,
)
from reports.figures.facts import UserFigures, Violation
from reports.figures.policy.ledger import ProcessSums, UseFact

# %: use that was measured less is not judged.
COVERAGE_PCT = 80.0
# %: high use of a GPU by a process outside the queue, and sustained use, which counts if most of
# the hours are not above the high use. Shorter use than these hours is not listed.
HIGH_PCT, SUSTAINED_PCT, VIOLATION_HOURS = 90.0, 80.0, 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportPolicy:
    """Fair-share reports: energy and costs."""

    # fmt: off
    price_per_kwh: float = threshold(0.0, "Price per kWh", ge=0, le=100,
        help="0: energy costs are not shown.")
    price_per_gpu_hour: float = threshold(0.0, "Price per GPU-hour", ge=0, le=10_000,
        help="0: costs of GPU time are not shown.")
    carbon_g_per_kwh: float = threshold(0.0, "Grid intensity (g CO2 per kWh)", unit="g",
        ge=0, le=5000, help="0: emissions are not shown.")
    currency: str = threshold("EUR", "Currency", "Shown beside prices.")
    # fmt: on


HOUR_S = 3600
# Of the period.
LEAST_PART = 0.01
# Of the wait caused.
LEAST_WAIT_S = 900
# More processes of one user's program than this are one line.
MOST_LINES = 3


class Standards(Struct, frozen=True):
    """Limits that violations are judged by.

    entitled, excess_pct: percent of the machine by user name: the entitlement, and the share held
    over the period above it.
    """

    gpu_time: GpuTimePolicy
    exemptions: tuple[ExemptionRule, ...]
    entitled: Callable[[str], float]
    excess_pct: Callable[[str], float]
    period_s: float


def judged(
    processes: Iterable[ProcessSums], names: Mapping[str, str], standards: Standards
) -> tuple[tuple[Violation, ...], tuple[Violation, ...]]:
    """(violations, heavy use that is none), most hours first. names: of GPUs.

    Short or many processes of one program count together.
    """
    groups: dict[tuple[str, str], list[ProcessSums]] = {}
    for sums in processes:
        if sums.sustained_s and _is_judged(sums.use, standards):
            groups.setdefault((sums.use.owner or "", sums.use.program), []).append(sums)
    violations: list[Violation] = []
    heavy: list[Violation] = []
    for group in groups.values():
        lines = _of_program(group, names, standards, is_harmful=True)
        violations += lines
        if not lines:
            heavy += _of_program(group, names, standards, is_harmful=False)
    return _sorted(violations), _sorted(heavy)


def above_entitlement(
    users: Iterable[UserFigures], violations: Iterable[Violation]
) -> tuple[UserFigures, ...]:
    """Users who held more than their entitlement and made others wait, most wait first.

    A user whose time was measured badly is left out, unless a violation names that user: each
    violation was measured well.
    """
    violators = {violation.user for violation in violations}
    rows = [
        user
        for user in users
        if user.user
        and user.share_pct is not None
        and user.entitled_pct is not None
        and user.share_pct > user.entitled_pct
        and user.caused_wait_hours * HOUR_S >= LEAST_WAIT_S
        and (user.user in violators or (user.coverage or 0) * 100 >= COVERAGE_PCT)
    ]
    return tuple(sorted(rows, key=lambda user: -user.caused_wait_hours))


def _sorted(lines: Iterable[Violation]) -> tuple[Violation, ...]:
    return tuple(sorted(lines, key=lambda v: (-v.hours, v.user or "", v.pid or 0)))


def _of_program(
    group: Sequence[ProcessSums],
    names: Mapping[str, str],
    standards: Standards,
    *,
    is_harmful: bool,
) -> list[Violation]:
    """Of one user's program: a few processes one by one, short or many processes together."""
    single = [(sums, _line_of([sums], names, standards, is_harmful)) for sums in group]
    lines = [line for _, line in single if line is not None]
    rest = [sums for sums, line in single if line is None]
    if len(lines) > MOST_LINES:
        lines, rest = [], list(group)
    together = _line_of(rest, names, standards, is_harmful) if len(rest) > 1 else None
    return lines if together is None else [*lines, together]


def _line_of(
    group: Sequence[ProcessSums], names: Mapping[str, str], standards: Standards, is_harmful: bool
) -> Violation | None:
    """None: not enough use, or measured too badly; of a violation, not above the entitlement."""
    owner = group[0].use.owner or ""
    if is_harmful:
        high = sum(s.harmful_high_s for s in group)
        sustained = sum(s.harmful_sustained_s for s in group)
    else:
        high, sustained = sum(s.high_s for s in group), sum(s.sustained_s for s in group)
    seconds, level = sustained, SUSTAINED_PCT
    if high >= 0.5 * sustained:
        seconds, level = high, HIGH_PCT
    held, known_s = sum(s.held_s for s in group), sum(s.known_s for s in group)
    coverage = known_s / held if held else 0.0
    # Processes at the same time delay the same jobs.
    waited = sum({t: s for sums in group for t, s in sums.waited.items()}.values())
    least = max(VIOLATION_HOURS * HOUR_S, LEAST_PART * standards.period_s)
    if seconds < least or 100 * coverage < COVERAGE_PCT:
        return None
    if is_harmful and (standards.excess_pct(owner) <= 0 or waited < LEAST_WAIT_S):
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
        expected_pct=standards.entitled(owner),
        mean_pct=100 * sum(s.sm_s for s in group) / known_s,
        coverage=coverage,
        waited_hours=waited / HOUR_S,
        gpus=tuple(dict.fromkeys(names.get(u, u) for s in group for u in s.gpus)),
        url=f"/processes/{worst.use.id}/",
    )


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
    return f"{use_line(violation)} (expected quota: {violation.expected_pct:.3g}%)"


def use_line(v: Violation) -> str:
    """The same without the entitlement, for heavy use that is no violation."""
    process = f"PID {v.pid}" if v.pid is not None else f"{v.processes} processes"
    user = v.user or "unknown owner"
    inside = user if v.is_anonymous else f"{process}, {user}"
    return f"{v.program} ({inside}): {v.hours:.1f} hours at >{v.above_pct:g}%"
