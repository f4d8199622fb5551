"""The tables of a report for all formats, the report as plain text, and its one-page form."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from msgspec import Struct
from msgspec.structs import replace

from monitor.facts.formats import first_few, sig3
from monitor.facts.input_rules import escaped
from reports.figures.facts import (
    YARDSTICKS,
    GpuHours,
    Report,
    ScopeKind,
    Table,
    Totals,
    UserFigures,
)
from reports.figures.policy import advice
from reports.figures.policy.advice import above_entitlement, line, use_line
from scheduler.facts.blockers import title as blocker_title

WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
UNKNOWN_OWNER = "unknown owner"
# Rows of a printed table; the rest is in the CSV and XLSX files.
MOST_PRINTED = 200
LEAST_PRINTED = 0.01
PARTS = ("Used", "Idle, held", "Booked, empty", "Free", "Unknown")
# Notes of figures that are wider than the scope of the report.
ALL_USERS = "All users of these GPUs"
ALL_JOBS = "Jobs of all GPUs: a waiting job has no GPU yet."


def tables(report: Report) -> list[Table]:
    """All tables, the users first."""
    return [
        users(report),
        waste(report),
        balance(report),
        queue(report),
        blockers(report),
        incidents(report),
        operation(report),
        timeline(report),
        heat(report),
        waits(report),
        *([patterns(report)] if report.patterns else []),
        *report.sections,
    ]


# Heads of columns, each with its value of a row.
Columns = Sequence[tuple[str, Callable[[Any], Any]]]
USERS: Columns = (
    ("User", lambda row: name(row.user)),
    ("Held (GPU-h)", lambda row: row.held),
    ("Used (GPU-h)", lambda row: row.used),
    ("Idle, held (GPU-h)", lambda row: row.idle_held),
    ("Booked, empty (GPU-h)", lambda row: row.booked_empty),
    ("Efficiency (%)", lambda row: _pct(row.efficiency)),
    ("Coverage (%)", lambda row: _pct(row.coverage)),
    ("Share (%)", lambda row: row.share_pct),
    ("Entitled (%)", lambda row: row.entitled_pct),
    ("Own wait (h)", lambda row: row.waited_hours),
    ("Wait caused (h)", lambda row: row.caused_wait_hours),
    ("Energy (kWh)", lambda row: row.energy_kwh),
)
DETAILS: Columns = (
    ("User", lambda row: name(row.user)),
    ("Memory (GiB-h)", lambda row: row.memory_gib_hours),
    ("Over-use while others waited (h)", lambda row: row.overuse_hours),
    ("Target (%)", lambda row: row.target_pct),
    ("Idle energy (kWh)", lambda row: row.idle_energy_kwh),
    ("Unknown (GPU-h)", lambda row: row.unknown),
    ("Right size", lambda row: row.right_size.text if row.right_size else ""),
)
QUEUE: Columns = (
    ("Class", lambda row: row.job_class),
    ("Jobs", lambda row: row.jobs),
    ("Still waiting", lambda row: row.waiting),
    ("Wait p50 (min)", lambda row: _min(row.p50_s)),
    ("Wait p90 (min)", lambda row: _min(row.p90_s)),
    ("Main blocker", lambda row: blocker_title(row.blocker) if row.blocker else None),
)
BLOCKERS: Columns = (
    ("Blocker", lambda row: blocker_title(row.blocker)),
    ("Jobs", lambda row: row.jobs),
    ("Wait p50 (min)", lambda row: _min(row.p50_s)),
    ("Wait p90 (min)", lambda row: _min(row.p90_s)),
    ("Waited (job-h)", lambda row: row.waited_hours),
)
INCIDENTS: Columns = (
    ("Rule", lambda row: row.title),
    ("Incidents", lambda row: row.incidents),
    ("Duration (h)", lambda row: row.hours),
    ("Waits of others (h)", lambda row: row.waited_hours),
)
OPERATION: Columns = (
    ("Defensive mode (h)", lambda row: row.defensive_hours),
    ("Throttled starts (h)", lambda row: row.throttled_hours),
    ("Deferrals", lambda row: row.deferrals),
    ("Preemptions", lambda row: row.preemptions),
    ("Evictions", lambda row: row.evictions),
)


def _table(key: str, title: str, columns: Columns, rows: Iterable[Any], note: str = "") -> Table:
    return Table(
        key=key,
        title=title,
        head=tuple(head for head, _ in columns),
        rows=tuple(tuple(value(row) for _, value in columns) for row in rows),
        note=note,
    )


def users(report: Report) -> Table:
    return _table("users", "Users", USERS, report.users)


def waste(report: Report) -> Table:
    """Further figures of users."""
    return _table("details", "Users: memory, over-use and energy", DETAILS, report.users)


def balance(report: Report) -> Table:
    """All parts of the capacity, of each GPU and of all together."""
    rows: list[tuple[Any, ...]] = [
        (gpu.name, *_parts(gpu.hours), gpu.energy_kwh) for gpu in report.gpus
    ]
    return Table(
        key="balance",
        title="GPU time and energy",
        head=("GPU", *(f"{part} (GPU-h)" for part in PARTS), "Capacity (GPU-h)", "Energy (kWh)"),
        rows=(*rows, ("Total", *_parts(report.totals.gpu_hours), report.totals.energy_kwh)),
        note=gpu_time(report),
    )


def gpu_time(report: Report) -> str:
    """The sum of all users' GPU time, which the report of a user or group says."""
    words = reconciliation(report.totals.gpu_hours)
    return f"{ALL_USERS}: {words}" if is_of_some_users(report) else words


def is_of_some_users(report: Report) -> bool:
    """Figures of GPUs and hosts still count all users."""
    return report.scope.kind in (ScopeKind.USER, ScopeKind.GROUP)


def of_all_users(report: Report) -> str:
    """The note of such figures; empty where the report is about all users anyway."""
    return f"{ALL_USERS}." if is_of_some_users(report) else ""


def of_all_jobs(report: Report) -> str:
    """The note of figures of the queue; empty unless the report is about a GPU or host."""
    return ALL_JOBS if report.scope.kind in (ScopeKind.GPU, ScopeKind.HOST) else ""


def of_hosts(report: Report) -> str:
    """The note of figures that exist only for whole hosts."""
    if report.scope.kind in (ScopeKind.ALL, ScopeKind.HOST):
        return ""
    return "All users and GPUs of the hosts: load control works on whole hosts."


def wider_figures(report: Report) -> dict[str, str]:
    """The fields of the JSON that count more than the scope of the report, each with its note."""
    users, jobs, hosts = of_all_users(report), of_all_jobs(report), of_hosts(report)
    notes = {"totals.gpu_hours": users, "gpus": users, "heat": users, "operation": hosts}
    notes |= {"queue": jobs, "blockers": jobs, "waits": jobs}
    return {field: note for field, note in notes.items() if note}


def in_zone(report: Report, subject: str) -> str:
    """The note of days and hours that belong to the zone of the report."""
    return f"{subject} in {report.period.zone}."


def joined(*sentences: str) -> str:
    """Those that are not empty."""
    return " ".join(filter(None, sentences))


def reconciliation(hours: GpuHours) -> str:
    """The sum in words, with its deviation."""
    used, idle, empty, free, unknown, capacity = (f"{value:.2f}" for value in _parts(hours))
    off = 100 * abs(hours.parts - hours.capacity) / hours.capacity if hours.capacity else 0.0
    return (
        f"{used} used + {idle} idle, held + {empty} booked, empty + {free} free + {unknown} unknown"
        f" = {hours.parts:.2f} of {capacity} GPU-hours ({off:.2f} % off)"
    )


def queue(report: Report) -> Table:
    return _table("queue", "Queue", QUEUE, report.queue, of_all_jobs(report))


def blockers(report: Report) -> Table:
    note = joined(
        "The blocker that a job waited for longest, with the whole wait of the job. Jobs whose"
        " blockers were not recorded are left out.",
        of_all_jobs(report),
    )
    return _table("blockers", "Waits by main blocker", BLOCKERS, report.blockers, note)


def incidents(report: Report) -> Table:
    return _table("incidents", "Incidents by rule", INCIDENTS, report.incidents)


def operation(report: Report) -> Table:
    return _table("operation", "Load control", OPERATION, [report.operation], of_hosts(report))


def timeline(report: Report) -> Table:
    """Holders of each GPU over time; incidents as rows of their own."""
    zone = ZoneInfo(report.period.zone)

    def rows() -> Iterator[tuple[Any, ...]]:
        for gpu in report.gpus:
            for span in gpu.spans:
                times = (_local(span.since, zone), _local(span.until, zone))
                yield gpu.name, *times, name(span.user), span.used_pct
            for t, mark in gpu.marks:
                yield gpu.name, _local(t, zone), "", f"Incident: {mark}", None

    return Table(
        key="timeline",
        title="Occupancy",
        head=("GPU", "From", "Until", "Main user", "Used (%)"),
        rows=tuple(rows()),
        note=of_all_users(report),
    )


def heat(report: Report) -> Table:
    return Table(
        key="heat",
        title="Use by hour of the week",
        head=("Weekday", *(f"{hour:02d} h (%)" for hour in range(24))),
        rows=tuple((day, *row) for day, row in zip(WEEKDAYS, report.heat, strict=False)),
        note=joined(of_all_users(report), in_zone(report, "Days and hours")),
    )


def waits(report: Report) -> Table:
    zone = ZoneInfo(report.period.zone)
    return Table(
        key="waits",
        title="Waits over time",
        head=("From", "Job-hours waited"),
        rows=tuple((_local(t, zone), hours) for t, hours in report.waits),
        note=of_all_jobs(report),
    )


def patterns(report: Report) -> Table:
    return Table(
        key="patterns",
        title="Recurring patterns",
        head=("User", "Pattern"),
        rows=tuple((name(row.user), row.text) for row in report.patterns),
    )


def name(user: str | None) -> str:
    return user or UNKNOWN_OWNER


def cell(value: Any) -> str:
    """A value as it is printed: 3 digits, "–" for unknown, a time in the report's zone."""
    if isinstance(value, float) and 0 < value < LEAST_PRINTED:
        return f"<{LEAST_PRINTED}"
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%d %H:%M}"
    return sig3(value) if value is None or isinstance(value, float) else str(value)


def _parts(hours: GpuHours) -> tuple[float, ...]:
    return (
        hours.used,
        hours.idle_held,
        hours.booked_empty,
        hours.free,
        hours.unknown,
        hours.capacity,
    )


def _local(t: float, zone: ZoneInfo) -> datetime:
    return datetime.fromtimestamp(t, zone)


def _pct(part: float | None) -> float | None:
    return None if part is None else 100 * part


def _min(seconds: float | None) -> float | None:
    return None if seconds is None else seconds / 60


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
    yield f"  {gpu_time(report)}"
    yield ""
    yield "Users:"
    yield from aligned(users(report))
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
        yield from aligned(queue(report))
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


# They fit on one page, also with the longest names.
MOST_USERS, MOST_VIOLATIONS, MOST_ADVICE, MOST_FINDINGS, MOST_GPUS = 6, 4, 3, 3, 8
LONGEST_LINE = 400
TABLES, PICTURES = ("users",), ("shares", "timeline")


class Cover(Struct, frozen=True):
    """Subject of the page: its title, and the text of the incident."""

    title: str
    text: str


def shortened(report: Report) -> Report:
    """The same figures with fewer rows: the page's users, GPUs with use, and main advice."""
    users = tuple(
        replace(row, findings=row.findings[:MOST_FINDINGS]) for row in report.users[:MOST_USERS]
    )
    names = {row.user for row in users}
    gpus = [gpu for gpu in report.gpus if any(span.user in names for span in gpu.spans)]
    return replace(
        report,
        users=users,
        violations=report.violations[:MOST_VIOLATIONS],
        recommendations=tuple(
            replace(advice, text=cut(advice.text))
            for advice in report.recommendations[:MOST_ADVICE]
        ),
        gpus=tuple(gpus[:MOST_GPUS]),
        heavy_use=(),
        notes=(*report.notes, *_left_out(report)),
        open_incidents=report.open_incidents[:MOST_FINDINGS],
        sections=(),
    )


def _left_out(report: Report) -> tuple[str, ...]:
    """A note of what does not fit on the page."""
    counts = (
        ("user", len(report.users) - MOST_USERS),
        ("violation", len(report.violations) - MOST_VIOLATIONS),
        ("open incident", len(report.open_incidents) - MOST_FINDINGS),
        ("recommendation", len(report.recommendations) - MOST_ADVICE),
    )
    more = [f"{n} more {word}{'s' if n > 1 else ''}" for word, n in counts if n > 0]
    return (f"Not on this page: {', '.join(more)}.",) if more else ()


def cut(words: str) -> str:
    """At most LONGEST_LINE characters."""
    return words if len(words) <= LONGEST_LINE else f"{words[: LONGEST_LINE - 1]}…"


def brief_text(report: Report, cover: Cover) -> str:
    return "\n".join(map(escaped, brief_lines(shortened(report), cover))) + "\n"


def brief_lines(report: Report, cover: Cover) -> Iterator[str]:
    """Of a shortened report."""
    yield cover.title
    yield subtitle(report)
    yield from report.notes
    yield ""
    yield from cut(cover.text).splitlines()
    yield ""
    yield from sentences(report)
    yield from headline(report.totals)
    yield ""
    yield "Users:"
    yield from aligned(users(report))
    yield ""
    yield from judged(report)
    yield f"Recommendation: {advice.headline(report)}"
    yield from (f"- {recommendation.text}" for recommendation in report.recommendations)
