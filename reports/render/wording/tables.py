"""The tables of a report, the same for the page, the files and the pictures."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from monitor.facts.formats import sig3
from reports.figures.facts import GpuHours, Report, ScopeKind, Table
from scheduler.facts.blockers import title

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


def users(report: Report) -> Table:
    return Table(
        key="users",
        title="Users",
        head=(
            "User",
            "Held (GPU-h)",
            "Used (GPU-h)",
            "Idle, held (GPU-h)",
            "Booked, empty (GPU-h)",
            "Efficiency (%)",
            "Coverage (%)",
            "Share (%)",
            "Entitled (%)",
            "Own wait (h)",
            "Wait caused (h)",
            "Energy (kWh)",
        ),
        rows=tuple(
            (
                name(row.user),
                row.held,
                row.used,
                row.idle_held,
                row.booked_empty,
                _pct(row.efficiency),
                _pct(row.coverage),
                row.share_pct,
                row.entitled_pct,
                row.waited_hours,
                row.caused_wait_hours,
                row.energy_kwh,
            )
            for row in report.users
        ),
    )


def waste(report: Report) -> Table:
    """Further figures of users."""
    return Table(
        key="details",
        title="Users: memory, over-use and energy",
        head=(
            "User",
            "Memory (GiB-h)",
            "Over-use while others waited (h)",
            "Target (%)",
            "Idle energy (kWh)",
            "Unknown (GPU-h)",
            "Right size",
        ),
        rows=tuple(
            (
                name(row.user),
                row.memory_gib_hours,
                row.overuse_hours,
                row.target_pct,
                row.idle_energy_kwh,
                row.unknown,
                row.right_size.text if row.right_size else "",
            )
            for row in report.users
        ),
    )


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
    return Table(
        key="queue",
        title="Queue",
        head=(
            "Class",
            "Jobs",
            "Still waiting",
            "Wait p50 (min)",
            "Wait p90 (min)",
            "Main blocker",
        ),
        rows=tuple(
            (
                row.job_class,
                row.jobs,
                row.waiting,
                _min(row.p50_s),
                _min(row.p90_s),
                title(row.blocker) if row.blocker else None,
            )
            for row in report.queue
        ),
        note=of_all_jobs(report),
    )


def blockers(report: Report) -> Table:
    return Table(
        key="blockers",
        title="Waits by main blocker",
        head=("Blocker", "Jobs", "Wait p50 (min)", "Wait p90 (min)", "Waited (job-h)"),
        rows=tuple(
            (title(row.blocker), row.jobs, _min(row.p50_s), _min(row.p90_s), row.waited_hours)
            for row in report.blockers
        ),
        note=joined(
            "The blocker that a job waited for longest, with the whole wait of the job. Jobs whose"
            " blockers were not recorded are left out.",
            of_all_jobs(report),
        ),
    )


def incidents(report: Report) -> Table:
    return Table(
        key="incidents",
        title="Incidents by rule",
        head=("Rule", "Incidents", "Duration (h)", "Waits of others (h)"),
        rows=tuple((r.title, r.incidents, r.hours, r.waited_hours) for r in report.incidents),
    )


def operation(report: Report) -> Table:
    o = report.operation
    return Table(
        key="operation",
        title="Load control",
        head=(
            "Defensive mode (h)",
            "Throttled starts (h)",
            "Deferrals",
            "Preemptions",
            "Evictions",
        ),
        rows=((o.defensive_hours, o.throttled_hours, o.deferrals, o.preemptions, o.evictions),),
        note=of_hosts(report),
    )


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
