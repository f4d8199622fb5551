"""A report as plain text, for terminals and mails."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from zoneinfo import ZoneInfo

from monitor.facts.formats import sig3
from monitor.facts.input_rules import escaped
from reports.figures.facts import YARDSTICKS, Report, Table, Totals
from reports.figures.policy import advice
from reports.figures.policy.violations import line, use_line
from reports.render.wording import summary, tables
from reports.render.wording.tables import cell

HEAVY_USE = "Heavy use outside the queue that is no violation"


def text(report: Report) -> str:
    return "\n".join(map(escaped, lines(report))) + "\n"


def lines(report: Report) -> Iterator[str]:
    yield title(report)
    yield subtitle(report)
    yield from report.notes
    yield ""
    yield from summary.sentences(report)
    yield ""
    yield from headline(report.totals)
    yield ""
    yield "GPU time:"
    yield f"  {tables.gpu_time(report)}"
    yield ""
    yield "Users:"
    yield from aligned(tables.users(report))
    yield ""
    yield from _queue(report)
    yield from judged(report)
    yield f"Recommendation: {advice.headline(report)}"
    yield from (f"- {r.text}" for r in report.recommendations)


def judged(report: Report) -> Iterator[str]:
    """Violations, other heavy use and open incidents."""
    yield "Fair Share Violations:"
    yield from (f"- {line(v)}" for v in report.violations)
    if not report.violations:
        yield "- none"
    yield ""
    if report.heavy_use:
        yield f"{HEAVY_USE}:"
        yield from (f"- {use_line(v)}" for v in report.heavy_use)
        yield ""
    if report.open_incidents:
        yield "Open incidents:"
        yield from (f"- {finding.text}" for finding in report.open_incidents)
        yield ""


def title(report: Report) -> str:
    """Such as "GPU Utilization Report (Last 24 hours)"."""
    return f"GPU Utilization Report ({report.period.label})"


def subtitle(report: Report) -> str:
    """Period, scope and coverage."""
    period, zone = report.period, ZoneInfo(report.period.zone)
    since, until = (f"{at.astimezone(zone):%Y-%m-%d %H:%M}" for at in (period.since, period.until))
    return f"{since} to {until} {period.zone} · {extent(report)}"


def extent(report: Report) -> str:
    """Scope and coverage."""
    covered = "–" if report.coverage_pct is None else f"{report.coverage_pct:.1f} %"
    scope = "all GPUs and users" if report.scope.text == "all" else report.scope.text
    return f"{scope} · coverage {covered}"


def headline(totals: Totals) -> Iterator[str]:
    """The three numbers, with figures of the period before and of other clusters; energy, costs."""
    per_100 = totals.whole_per_100
    if per_100 is None:
        yield "No GPU-hours held."
    else:
        used, idle, empty = per_100
        yield f"Of 100 GPU-hours held: {used} used, {idle} idle, {empty} booked but empty"
        yield f"Not used of 100: {100 - used} here; {yardsticks()}"
    yield from comparison(totals)
    yield from energy(totals)


def yardsticks() -> str:
    return ", ".join(f"{name} {value:.0f}" for name, value in YARDSTICKS)


def comparison(totals: Totals) -> Iterator[str]:
    """With the period before; nothing if that was not recorded."""
    if totals.used_before is not None:
        now, before = sig3(totals.people.used), sig3(totals.used_before)
        yield f"GPU-hours used: {now}, in the period before {before}"


def energy(totals: Totals) -> Iterator[str]:
    """Nothing of what is unknown or not set."""
    costs = totals.costs
    if totals.energy_kwh is not None:
        idle = totals.idle_energy_kwh
        part = "" if idle is None else f", {idle:.1f} kWh of it without work"
        yield f"Energy: {totals.energy_kwh:.1f} kWh{part}"
    money = [
        f"{word} {value:.2f} {costs.currency}"
        for word, value in (
            ("energy", costs.energy),
            ("GPU time", costs.gpu_time),
            ("not used", costs.idle),
        )
        if value is not None
    ]
    if money:
        yield f"Costs: {', '.join(money)}"
    if costs.co2_kg is not None:
        yield f"Emissions: {costs.co2_kg:.1f} kg CO2"


def aligned(table: Table) -> Iterator[str]:
    """Columns of equal width: texts left, figures right."""
    rows: Sequence[Sequence[str]] = [
        table.head,
        *([cell(value) for value in row] for row in table.rows),
    ]
    widths = [max(len(row[i]) for row in rows) for i in range(len(table.head))]
    for row in rows:
        first, *rest = zip(row, widths, strict=True)
        figures = (value.rjust(width) for value, width in rest)
        yield "  ".join(["", first[0].ljust(first[1]), *figures]).rstrip()
    if not table.rows:
        yield "  no use"


def _queue(report: Report) -> Iterator[str]:
    if any(row.jobs for row in report.queue):
        yield "Queue:"
        yield from aligned(tables.queue(report))
        yield ""
