"""Policy: heavy use outside the queue, violations among it, and what to do about findings.

A violation is a known owner's process with enough hours at high use, counted only while its owner
held more of the machine than the entitlement, and a job of another user waited that could have run
there. The owner must also be above the entitlement over the whole period, and have caused a wait of
15 minutes. All other heavy use is listed on its own, without blame. Jobs within their claim are
never listed, and exempt users, programs and containers are not either.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from msgspec import Struct

from monitor.facts.formats import sig3
from monitor.facts.readings import ProcessReading
from monitor.facts.thresholds import threshold
from monitor.incidents.policy.findings import (
    ExemptionRule,
    GpuTimePolicy,
    is_exempt,
    is_exempt_from,
)
from reports.figures.facts import (
    PatternFact,
    Recommendation,
    Report,
    Totals,
    UserFigures,
    Violation,
)
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


# Held hours, their idle part and waits below which no advice is worth reading.
LEAST_HOURS, IDLE_PART, LEAST_WAIT_HOURS = 1.0, 0.5, 4.0


def recommendations(
    violations: Sequence[Violation],
    users: Sequence[UserFigures],
    patterns: Sequence[PatternFact],
    totals: Totals,
) -> tuple[Recommendation, ...]:
    """The most urgent first. Users whose own time was measured badly are not to be contacted."""
    contacts = (
        *_of_violations(violations, users),
        *_of_patterns(violations, patterns),
        *_of_idle(users),
        *_of_bookings(users),
    )
    above = above_entitlement(users, violations)
    named = {advice.user for advice in contacts}
    return (
        *contacts,
        # A user who is to be contacted gets no second advice about the same use.
        *(_lower_share(user) for user in above if user.user not in named),
        *_raised_quotas(users, totals),
        *_of_sizes(users),
    )


def _of_violations(
    violations: Sequence[Violation], users: Sequence[UserFigures]
) -> Iterator[Recommendation]:
    caused = {u.user: u.caused_wait_hours for u in users}
    users_done: set[str | None] = set()
    for v in violations:
        if v.user in users_done:
            continue
        users_done.add(v.user)
        mine = [other for other in violations if other.user == v.user]
        hours = sum(other.hours for other in mine)
        gpus = list(dict.fromkeys(gpu for other in mine for gpu in other.gpus))
        level = min(other.above_pct for other in mine)
        usage = f"{_programs(mine)} used {_gpus(gpus)} above {level:g} % for {hours:.1f} h"
        text = (
            f"Contact {v.user}: {usage} outside the queue, which made jobs of others wait"
            f" {caused.get(v.user, v.waited_hours):.1f} h. Submit such work as preemptible jobs."
        )
        yield Recommendation(kind="contact", text=text, user=v.user)


def _of_patterns(
    violations: Sequence[Violation], patterns: Sequence[PatternFact]
) -> Iterator[Recommendation]:
    named = {v.user for v in violations}
    for pattern in patterns:
        if pattern.user and pattern.user in named:
            yield Recommendation(
                kind="window",
                text=f"Agree a time window with {pattern.user}: {pattern.text}",
                user=pattern.user,
            )


def _of_idle(users: Iterable[UserFigures]) -> Iterator[Recommendation]:
    for u in users:
        known_h = u.held - u.unknown
        if u.user and known_h >= LEAST_HOURS and u.idle_held > IDLE_PART * known_h and _good(u):
            yield Recommendation(
                kind="contact",
                text=f"Contact {u.user}: {sig3(u.idle_held)} of {sig3(known_h)} GPU-hours held were"
                " idle. Stop finished notebooks and processes, or batch the work as jobs.",
                user=u.user,
            )


def _of_bookings(users: Iterable[UserFigures]) -> Iterator[Recommendation]:
    for u in users:
        known_h = u.held - u.unknown
        if (
            u.user
            and u.booked_empty >= LEAST_HOURS
            and u.booked_empty > 0.25 * known_h
            and _good(u)
        ):
            yield Recommendation(
                kind="contact",
                text=f"Contact {u.user}: jobs booked {sig3(u.booked_empty)} GPU-hours without a"
                " process on the GPU. Split the CPU part into a job of its own.",
                user=u.user,
            )


def _lower_share(u: UserFigures) -> Recommendation:
    text = (
        f"Lower the share or the GPU limit of {u.user}: {u.share_pct:.0f} % of the GPUs held"
        f" against {u.entitled_pct:.3g} % entitled, and jobs of others waited"
        f" {sig3(u.caused_wait_hours)} h for it."
    )
    return Recommendation(kind="quota", text=text, user=u.user)


def _raised_quotas(users: Iterable[UserFigures], totals: Totals) -> Iterator[Recommendation]:
    """Of users who waited although GPUs were free, and used their entitlement."""
    if totals.gpu_hours.free <= 0.2 * totals.gpu_hours.capacity:
        return
    for u in users:
        if not u.user or u.entitled_pct is None or u.share_pct is None or not _good(u):
            continue
        if u.waited_hours >= LEAST_WAIT_HOURS and u.share_pct >= 0.9 * u.entitled_pct:
            text = (
                f"Raise the quota of {u.user}: jobs waited {sig3(u.waited_hours)} h at a share of"
                f" {u.share_pct:.0f} % while GPUs were free."
            )
            yield Recommendation(kind="quota", text=text, user=u.user)


def _of_sizes(users: Iterable[UserFigures]) -> Iterator[Recommendation]:
    for u in users:
        if u.user and u.right_size is not None:
            yield Recommendation(
                kind="right_size",
                text=f"Right-size the jobs of {u.user}: {u.right_size.text}.",
                user=u.user,
            )


def _good(user: UserFigures) -> bool:
    return user.coverage is not None and user.coverage >= 0.8


def _programs(violations: Sequence[Violation]) -> str:
    names = list(dict.fromkeys(v.program for v in violations))
    more = len(names) - 1
    return names[0] if not more else f"{names[0]} and {more} other program{'s' if more > 1 else ''}"


def _gpus(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{len(names)} GPUs"


def headline(report: Report) -> str:
    """The line of the text form."""
    if report.violations:
        return "Contact owners or adjust quotas"
    return "See below" if report.recommendations else "None"
