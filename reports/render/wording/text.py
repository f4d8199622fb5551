"""A report as plain text, for terminals and mails."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from zoneinfo import ZoneInfo

from monitor.facts.formats import first_few, sig3
from monitor.facts.input_rules import escaped
from reports.figures.facts import YARDSTICKS, Report, Table, Totals, UserFigures
from reports.figures.policy import advice
from reports.figures.policy.violations import above_entitlement, line, use_line
from reports.render.wording import tables
from reports.render.wording.tables import cell, name
from scheduler.facts.blockers import title as blocker_title

HEAVY_USE = "Heavy use outside the queue that is no violation"


def text(report: Report) -> str:
    return "\n".join(map(escaped, lines(report))) + "\n"


def lines(report: Report) -> Iterator[str]:
    yield title(report)
    yield subtitle(report)
    yield from report.notes
    yield ""
    yield from sentences(report)
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
        part = "" if idle is None else f", {sig3(idle)} kWh of it without work"
        yield f"Energy: {sig3(totals.energy_kwh)} kWh{part}"
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


# The three sentences at the begin of a report.

MOST_WASTES, MOST_NAMED = 3, 2
# Below either, GPU-hours without use are not worth a line.
LEAST_WASTE_H, LEAST_WASTE_PART = 0.1, 0.01


def sentences(report: Report) -> tuple[str, ...]:
    """Whether it was fair, the waste, and the waits. Nothing where nothing was measured."""
    if report.is_empty:
        return ()
    return _fairness(report), _waste(report), _waits(report)


def _fairness(report: Report) -> str:
    """Such as "bob held 21 % of the GPU time, …, and jobs of others waited 54 h for it."."""
    above = above_entitlement(report.users, report.violations)
    if not above:
        return "No user made others wait by more than the entitlement."
    worst, *others = above
    named = [f"{name(u.user)} ({sig3(u.caused_wait_hours)} h)" for u in others]
    more = f" So did {first_few(named, MOST_NAMED)}." if named else ""
    return (
        f"{name(worst.user)} held {sig3(worst.share_pct)} % of the GPU time, more than the"
        f" entitlement of {sig3(worst.entitled_pct)} %, and jobs of others waited"
        f" {sig3(worst.caused_wait_hours)} h for it.{more}"
    )


def _waste(report: Report) -> str:
    """Such as "44 of 156 GPU-hours held were not used; largest: erin 10.5 of 13.8."."""
    people = report.totals.people
    if not people.held:
        return "No GPU-hours held."
    unused = people.idle_held + people.booked_empty
    words = f"{sig3(unused)} of {sig3(people.held)} GPU-hours held were not used"
    least = max(LEAST_WASTE_H, LEAST_WASTE_PART * people.held)
    wastes = sorted((waste for row in report.users for waste in _of(row)), reverse=True)
    largest = [text for hours, text in wastes[:MOST_WASTES] if hours >= least]
    return f"{words}; largest: {', '.join(largest)}." if largest else f"{words}."


def _of(row: UserFigures) -> Iterator[tuple[float, str]]:
    """(GPU-hours without use, "erin 10.5 of 13.8"), with a process and without."""
    user, known = name(row.user), sig3(row.held - row.unknown)
    yield row.idle_held, f"{user} {sig3(row.idle_held)} of {known}"
    yield row.booked_empty, f"{user} {sig3(row.booked_empty)} of {known} (booked without a process)"


def _waits(report: Report) -> str:
    if not report.totals.waited_hours or not report.blockers:
        return waiting(report.totals)
    main = max(report.blockers, key=lambda row: row.waited_hours)
    return f"{waiting(report.totals)} Main blocker: {_lower(blocker_title(main.blocker))}."


def waiting(totals: Totals) -> str:
    if not totals.waited_hours:
        return "No job waited for a GPU."
    idle = totals.waited_idle_hours
    while_idle = (
        f", up to {sig3(idle)} h of them while held GPUs stood idle" if idle >= 0.05 else ""
    )
    return f"Jobs waited {sig3(totals.waited_hours)} h{while_idle}."


def _lower(words: str) -> str:
    """ "Too little" in a sentence; "GPU" stays as it is."""
    return words if words[:2].isupper() else words[:1].lower() + words[1:]
