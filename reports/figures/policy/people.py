"""Policy: the rows of users and GPUs, from the sums of a ledger.

Policy: what a viewer may see of a report. Own rows in full, others without a name.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from msgspec.structs import replace

from monitor.facts.formats import GIB
from reports.figures.facts import (
    Costs,
    FindingFact,
    GpuFigures,
    GpuHours,
    Occupancy,
    Report,
    RightSize,
    Totals,
    TrendPoint,
    UserFigures,
    Violation,
)
from reports.figures.policy.advice import ReportPolicy
from reports.figures.policy.ledger import GpuSums, Ledger, OwnerSums, Split

HOUR_S, KWH_J = 3600, 3.6e6


def gpu_hours(split: Split) -> GpuHours:
    parts = (split.used, split.idle, split.empty, split.free, split.unknown)
    used, idle, empty, free, unknown = (part / HOUR_S for part in parts)
    return GpuHours(
        capacity=sum(parts) / HOUR_S,
        used=used,
        idle_held=idle,
        booked_empty=empty,
        free=free,
        unknown=unknown,
    )


def users(
    ledger: Ledger,
    capacity_h: float,
    account: Callable[[str], tuple[float | None, float | None]],
    *,
    overuse_s: Mapping[str, float],
    sizes: Mapping[str, RightSize],
    findings: Mapping[str, Sequence[FindingFact]],
    further: Mapping[str, int],
    trend: Mapping[str | None, Sequence[TrendPoint]],
) -> tuple[UserFigures, ...]:
    """One row for each user with GPU time or a waiting job, most GPU-hours first.

    capacity_h: measured GPU-hours. account: (entitled percent, target percent) of a user.
    """
    nothing = OwnerSums()
    names = [*ledger.owners, *(n for n in ledger.waited_s if n not in ledger.owners)]
    rows = []
    for name in names:
        sums = ledger.owners.get(name, nothing)
        split = sums.split
        measured_s = split.used + split.idle + split.empty
        entitled, target = account(name) if name else (None, None)
        key = name or ""
        rows.append(
            UserFigures(
                user=name,
                held=split.held / HOUR_S,
                used=split.used / HOUR_S,
                idle_held=split.idle / HOUR_S,
                booked_empty=split.empty / HOUR_S,
                unknown=split.unknown / HOUR_S,
                memory_gib_hours=_memory(sums),
                efficiency=split.used / measured_s if measured_s else None,
                coverage=_coverage(sums, measured_s),
                share_pct=100 * split.held / HOUR_S / capacity_h if capacity_h else None,
                entitled_pct=entitled,
                target_pct=target,
                overuse_hours=overuse_s.get(key, 0.0) / HOUR_S if key else 0.0,
                waited_hours=ledger.waited_s.get(key, 0.0) / HOUR_S,
                caused_wait_hours=ledger.caused_s.get(key, 0.0) / HOUR_S if key else 0.0,
                energy_kwh=_energy(sums),
                idle_energy_kwh=sums.idle_j / KWH_J if sums.joules is not None else None,
                trend=tuple(trend.get(name, ())),
                right_size=sizes.get(key),
                findings=tuple(findings.get(key, ())) if key else (),
                further_findings=further.get(key, 0) if key else 0,
            )
        )
    return tuple(sorted(rows, key=lambda row: (-row.held, row.user or "~")))


def measured_capacity(ledger: Ledger, whole: GpuHours) -> float:
    """GPU-hours whose holders are known; of the rest, no part can be said to be a user's share."""
    held_unknown = sum(sums.split.unknown for sums in ledger.owners.values()) / HOUR_S
    return whole.capacity - max(0.0, whole.unknown - held_unknown)


def _memory(sums: OwnerSums) -> float | None:
    """None if memory was held and never measured."""
    if sums.held_s and not sums.memory_known_s:
        return None
    return sums.memory_byte_s / GIB / HOUR_S


def _coverage(sums: OwnerSums, measured_s: float) -> float | None:
    """Known of the held process time; of time that was only booked all is known."""
    if sums.held_s:
        return min(1.0, sums.known_s / sums.held_s)
    return 1.0 if measured_s else None


def _energy(sums: OwnerSums) -> float | None:
    """With the idle energy of what the user held."""
    if sums.joules is None:
        return None
    return (sums.joules + sums.idle_j) / KWH_J


def gpu_figures(
    uuid: str,
    name: str,
    sums: GpuSums,
    held_spans: Iterable[Occupancy],
    marks: Iterable[tuple[int, str]],
) -> GpuFigures:
    return GpuFigures(
        uuid=uuid,
        name=name,
        hours=gpu_hours(sums.split),
        energy_kwh=sums.energy_j / KWH_J if sums.power_known_s else None,
        spans=tuple(held_spans),
        marks=tuple(marks),
    )


def totals(ledger: Ledger, people: Collection[str] | None, policy: ReportPolicy) -> Totals:
    """people: the users that the report is about; None: all."""
    whole, mine = Split(), Split()
    for sums in ledger.gpus.values():
        whole.add(sums.split)
    rows = [s for name, s in ledger.owners.items() if people is None or name in people]
    for owner in rows:
        mine.add(owner.split)
    waited, waited_idle = (
        sum(s for name, s in of.items() if people is None or name in people)
        for of in (ledger.waited_s, ledger.waited_idle_s)
    )
    energy, idle = _all_energy(ledger) if people is None else _energy_of(rows)
    part = gpu_hours(mine)
    return Totals(
        gpus=len(ledger.gpus),
        gpu_hours=gpu_hours(whole),
        people=part,
        waited_hours=waited / HOUR_S,
        waited_idle_hours=waited_idle / HOUR_S,
        energy_kwh=energy,
        idle_energy_kwh=idle,
        costs=costs(energy, idle, part, policy),
    )


def waits(ledger: Ledger, people: Collection[str] | None) -> tuple[tuple[int, float], ...]:
    """(begin of a bin, hours that jobs of these users waited in it), oldest first; None: all."""
    sums = (
        (t, sum(s for name, s in by_owner.items() if people is None or name in people))
        for t, by_owner in sorted(ledger.waits.items())
    )
    return tuple((t, seconds / HOUR_S) for t, seconds in sums if seconds)


def _all_energy(ledger: Ledger) -> tuple[float | None, float | None]:
    """Of the GPUs, and the part that no process is charged for."""
    gpus = [sums for sums in ledger.gpus.values() if sums.power_known_s]
    if not gpus:
        return None, None
    energy = sum(sums.energy_j for sums in gpus)
    return energy / KWH_J, max(0.0, energy - sum(sums.joules for sums in gpus)) / KWH_J


def _energy_of(rows: Sequence[OwnerSums]) -> tuple[float | None, float | None]:
    measured = [sums for sums in rows if sums.joules is not None]
    if not measured:
        return None, None
    idle = sum(sums.idle_j for sums in measured) / KWH_J
    return sum(sums.joules or 0.0 for sums in measured) / KWH_J + idle, idle


def costs(energy: float | None, idle: float | None, hours: GpuHours, policy: ReportPolicy) -> Costs:
    """Of what is set: 0 means that a price is not set. idle: of GPU time and energy not used."""
    per_kwh, per_hour = policy.price_per_kwh, policy.price_per_gpu_hour
    unused = hours.idle_held + hours.booked_empty
    idle_energy = 0.0 if not per_kwh else None if idle is None else idle * per_kwh
    return Costs(
        energy=energy * per_kwh if energy is not None and per_kwh else None,
        gpu_time=hours.held * per_hour if per_hour else None,
        idle=idle_energy + unused * per_hour
        if idle_energy is not None and (per_kwh or per_hour)
        else None,
        co2_kg=energy * policy.carbon_g_per_kwh / 1000
        if energy is not None and policy.carbon_g_per_kwh
        else None,
        currency=policy.currency,
    )


def heat(ledger: Ledger) -> tuple[tuple[float | None, ...], ...]:
    """Used percent by weekday and hour. None: not measured."""
    return tuple(
        tuple(100 * used / known_s if known_s else None for used, known_s in row)
        for row in ledger.week
    )


def anonymised(report: Report, visible: Collection[str]) -> Report:
    """Users outside `visible` become "user 1", "user 2": in this report only, by GPU-hours held.

    Their findings, processes, patterns and advice are left out.
    """
    aliases = _aliases(report, visible)
    shown = frozenset(visible)
    return replace(
        report,
        users=tuple(_user(row, aliases) for row in report.users),
        violations=tuple(_violation(v, aliases) for v in report.violations),
        heavy_use=tuple(_violation(v, aliases) for v in report.heavy_use),
        open_incidents=tuple(f for f in report.open_incidents if f.user in shown),
        recommendations=tuple(
            r for r in report.recommendations if r.user is None or r.user in shown
        ),
        patterns=tuple(p for p in report.patterns if p.user in shown),
        gpus=tuple(_gpu(gpu, aliases) for gpu in report.gpus),
    )


def _aliases(report: Report, visible: Collection[str]) -> dict[str, str]:
    names = [row.user for row in report.users if row.user]
    names += [v.user for v in (*report.violations, *report.heavy_use) if v.user]
    names += [span.user for gpu in report.gpus for span in gpu.spans if span.user]
    hidden = [name for name in dict.fromkeys(names) if name not in visible]
    return {name: f"user {number}" for number, name in enumerate(hidden, 1)}


def _user(row: UserFigures, aliases: dict[str, str]) -> UserFigures:
    if row.user not in aliases:
        return row
    return replace(
        row,
        user=aliases[row.user],
        is_anonymous=True,
        trend=(),
        right_size=None,
        findings=(),
        further_findings=0,
    )


def _violation(v: Violation, aliases: dict[str, str]) -> Violation:
    if v.user not in aliases:
        return v
    return replace(
        v, program="process", pid=None, user=aliases[v.user], gpus=(), url="", is_anonymous=True
    )


def _gpu(gpu: GpuFigures, aliases: dict[str, str]) -> GpuFigures:
    spans = tuple(
        replace(span, user=aliases[span.user], is_anonymous=True) if span.user in aliases else span
        for span in gpu.spans
    )
    return replace(gpu, spans=spans, marks=())


def only(rows: Iterable[UserFigures], names: Collection[str] | None) -> tuple[UserFigures, ...]:
    """The rows of these users; None: all."""
    return tuple(row for row in rows if names is None or row.user in names)
