"""Content of the history pages: time ranges, charts, sums and heat strips."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from django.conf import settings
from django.utils import timezone
from msgspec import Struct
from msgspec.structs import replace

from monitor.facts.formats import GIB
from monitor.facts.readings import GPU_FIELDS, ProcessReading
from monitor.gpus.policy.health import HealthPolicy
from monitor.incidents.policy.findings import COVERAGE_PCT
from monitor.incidents.rules.processes import IDLE_GIB, IDLE_PCT
from monitor.models import Gpu, ProcessUse
from monitor.pages.cards import in_gib
from monitor.thresholds import rows as thresholds
from monitor.usage.pages import chart_panels
from monitor.usage.pages.chart_panels import (
    ChartLine,
    History,
    OwnerShare,
    Panel,
    Row,
    Value,
    coverage,
    highest,
    mean,
)
from monitor.usage.policy import ranges as usage_ranges
from monitor.usage.policy.ranges import HistoryRange, HistoryWindow, Source
from monitor.usage.rows import processes as usage_sums
from monitor.usage.rows.rollups import GPUS, HOSTS, RollupLevels, summed

# A process that has just come is not idle yet.
LEAST_IDLE_S = 600.0
# Uses are added up in whole readings; a mean over less time than this could be far too high.
SHORTEST_MEAN_S = 5.0
TEMPERATURE = "temperature_c"


def gpu_panels(
    row: Gpu,
    window: HistoryWindow,
    hot_c: float,
    owners: Mapping[str, tuple[OwnerShare, ...]],
) -> list[Panel]:
    """A chart of each figure with roll-ups. hot_c: where the GPU gets no new jobs any more.

    owners: their shares, by the name of the figure.
    """
    panels = []
    for figure in GPU_FIELDS:
        if (rollup := figure.rollup) is None:
            continue
        if rollup.total and rollup.known_s:
            value = mean(rollup.total, rollup.known_s, figure.scale)
            lines = _lines(window, value, rollup.greatest, figure.scale)
        else:
            lines = (ChartLine("highest", highest(rollup.greatest, figure.scale)),)
        top = figure.shown(figure.meter.top_of(row)) if figure.meter else None
        limit = top if figure.meter and figure.meter.is_limit else None
        panel = Panel(
            figure.label,
            figure.unit_shown,
            lines,
            top=top,
            limit=limit,
            owners=owners.get(figure.name, ()),
        )
        if figure.name == TEMPERATURE:
            panel = replace(panel, top=max(top or 0.0, hot_c), limit=hot_c, limit_word="too hot at")
        panels.append(panel)
    return panels


def host_panels(window: HistoryWindow, memory_total_bytes: int | None) -> list[Panel]:
    return [
        Panel("CPU", "%", _lines(window, mean("cpu_pct_s", "cpu_known_s"), "cpu_max_pct"), top=100),
        Panel(
            "Memory",
            "GiB",
            _lines(window, mean("memory_byte_s", "memory_known_s", GIB), "memory_max_bytes", GIB),
            top=in_gib(memory_total_bytes),
        ),
        Panel("Load", "", _lines(window, mean("load_s", "load_known_s"), "load_max")),
        Panel(
            "Disk",
            "MB/s",
            (
                ChartLine("read", mean("disk_read_bytes", "disk_known_s", 1e6)),
                ChartLine("written", mean("disk_written_bytes", "disk_known_s", 1e6), "second"),
            ),
        ),
        Panel(
            "Waiting for CPU or I/O",
            "%",
            (
                ChartLine("CPU", mean("cpu_pressure_pct_s", "pressure_known_s")),
                ChartLine("I/O", mean("io_pressure_pct_s", "pressure_known_s"), "second"),
            ),
        ),
        Panel(
            "Waiting for memory",
            "%",
            (ChartLine("mean", mean("memory_pressure_pct_s", "pressure_known_s")),),
        ),
    ]


def person_panels() -> list[Panel]:
    return [
        Panel("GPUs used", "", (ChartLine("mean", _used),), top=1),
        Panel("GPU memory held", "GiB", (ChartLine("mean", mean("memory_byte_s", "seen_s", GIB)),)),
        Panel(
            "Processes on GPUs",
            "",
            (ChartLine("mean", mean("held_s", "seen_s")),),
            top=1,
            is_count=True,
        ),
        Panel("Power", "W", (ChartLine("mean", _power),)),
    ]


def process_panels(gpu_memory_bytes: int | None) -> list[Panel]:
    return [
        Panel("Share of the GPU", "%", (ChartLine("mean", _share),), top=100),
        Panel("Memory", "GiB", (ChartLine("mean", _memory),), top=in_gib(gpu_memory_bytes)),
        Panel("Power", "W", (ChartLine("mean", _own_power),)),
    ]


def _lines(
    window: HistoryWindow, value: Value, most: str, scale: float = 1
) -> tuple[ChartLine, ...]:
    """Means, with the maxima beside them if a point is longer than half a minute."""
    main = ChartLine("mean", value)
    return (
        (main, ChartLine("highest", highest(most, scale), "peak")) if window.step > 30 else (main,)
    )


def _used(row: Row) -> float | None:
    """The mean number of fully used GPUs; unknown if none of the held time is known."""
    if row["held_s"] and not row["known_s"]:
        return None
    return float(row["sm_s"]) / row["seen_s"] if row["seen_s"] else None


def _share(row: Row) -> float | None:
    return min(100.0, 100 * row["sm_s"] / row["known_s"]) if row["known_s"] else None


def _memory(row: Row) -> float | None:
    known_s = row["memory_known_s"]
    return row["memory_byte_s"] / known_s / GIB if known_s else None


def _power(row: Row) -> float | None:
    if row["joules"] is None:
        return None if row["held_s"] else 0.0
    return float(row["joules"]) / row["seen_s"] if row["seen_s"] else None


def _own_power(row: Row) -> float | None:
    """Mean power while the process was on the GPU."""
    is_known = row["joules"] is not None and row["held_s"]
    return float(row["joules"]) / row["held_s"] if is_known else None


PROCESSES_SHOWN = 20


class Ranges(Struct, frozen=True):
    """The choice of ranges above the charts."""

    window: HistoryWindow
    names: tuple[tuple[str, str], ...]
    since: datetime
    until: datetime
    zone: str


def window(
    query: Mapping[str, str], now: datetime, default: str = usage_ranges.DEFAULT
) -> HistoryWindow:
    return usage_ranges.window(query, now, _retention(), timezone.get_current_timezone(), default)


def ranges(of: HistoryWindow, now: datetime, *more: tuple[str, str]) -> dict[str, Any]:
    """Template variables for the choice of time ranges. `more`: further ranges of this page."""
    names = (*more, *((name, words) for name, (words, _) in usage_ranges.RANGES.items()))
    since, until = (datetime.fromtimestamp(t, now.tzinfo) for t in (of.since, of.until))
    zone = timezone.get_current_timezone_name()
    return {"ranges": Ranges(of, names, since, until, zone), "window": of}


def gpu(row: Gpu, query: Mapping[str, str], now: datetime) -> dict[str, Any]:
    """History of a GPU and its users."""
    chosen = window(query, now)
    rows = sums(GPUS, row.uuid, chosen)
    minutes = chosen.in_minutes
    people = usage_sums.by_owner(row.uuid, minutes)
    owners = chart_panels.shares(row.uuid, sums(GPUS, row.uuid, minutes), minutes)
    panels = gpu_panels(row, chosen, thresholds.current(HealthPolicy).hot_c, owners)
    return {
        **ranges(chosen, now),
        "history": drawn(panels, rows, chosen, now, coverage(rows, chosen)),
        "people": people,
        "strips": chart_panels.strips([row], int(now.timestamp())),
    }


def host(name: str, memory_total_bytes: int | None, query: Any, now: datetime) -> dict[str, Any]:
    """History of a host and heat strips of its GPUs."""
    chosen = window(query, now)
    rows = sums(HOSTS, name, chosen)
    gpus = list(Gpu.objects.filter(host=name).order_by("index", "uuid"))
    return {
        **ranges(chosen, now),
        "history": drawn(
            host_panels(chosen, memory_total_bytes), rows, chosen, now, coverage(rows, chosen)
        ),
        "strips": chart_panels.strips(gpus, int(now.timestamp())),
    }


def person(name: str, query: Mapping[str, str], now: datetime, details: bool) -> dict[str, Any]:
    """Usage of a user by GPU, and with `details` by process."""
    chosen = window(query, now, "24h").in_minutes
    gpus = usage_sums.by_gpu(name, chosen)
    rows = usage_sums.points(usage_sums.uses_of(name), chosen)
    used = usage_sums.total(gpus)
    processes = usage_sums.by_process(name, chosen, PROCESSES_SHOWN) if details else []
    return {
        **ranges(chosen, now),
        "history": drawn(person_panels(), rows, chosen, now, used.coverage_pct),
        "gpus": gpus,
        "several": len({entry.subject.host for entry in gpus}) > 1,
        "total": used,
        "processes": processes,
    }


def between(since: int, until: int, now: datetime) -> HistoryWindow:
    """The time range of an incident."""
    return usage_ranges.between(since, until, now, _retention(), "incident")


def process(use: ProcessUse, query: Mapping[str, str], now: datetime) -> dict[str, Any]:
    """History of a process: its whole lifetime, or the range in the query."""
    chosen = _life_or_range(use.first_seen_at, use.ended_at, query, now)
    only = ProcessUse.objects.filter(pk=use.pk)
    rows = [r for r in usage_sums.points(only, chosen, use.host) if r["held_s"]]
    shown = process_panels(use.gpu.memory_total_bytes)
    return {
        **ranges(chosen, now, ("life", "lifetime")),
        "history": drawn(shown, rows, chosen, now, _coverage_pct(rows)),
    }


def _life_or_range(
    begin: datetime, end: datetime | None, query: Mapping[str, str], now: datetime
) -> HistoryWindow:
    """The whole lifetime, or the range in the query; `end` None: it goes on."""
    if query.get("range", "life") != "life" or query.get("since"):
        return window(query, now).in_minutes
    until = int((end or now).timestamp())
    since = min(int(begin.timestamp()), until - usage_ranges.SHORTEST_S)
    return usage_ranges.between(since, until, now, _retention(), "life").in_minutes


def _coverage_pct(rows: Sequence[Row]) -> float | None:
    held_s, known_s = (sum(row[name] for row in rows) for name in ("held_s", "known_s"))
    return usage_sums.UsageTotals(held_s=held_s, known_s=known_s).coverage_pct


def job(
    ref: str,
    owner: str,
    gpus: int,
    memory: MemoryLine | None,
    runs: Sequence[tuple[datetime, datetime | None]],
    query: Mapping[str, str],
    now: datetime,
) -> dict[str, Any]:
    """History of a job's processes on its GPUs, from its first start to its last end or now.

    `runs`: begin and end of each attempt, oldest first, at least one; None: it still runs.
    `memory`: of all its GPUs together; None: nothing requested.
    """
    chosen = _life_or_range(runs[0][0], runs[-1][1], query, now)
    uses = ProcessUse.objects.filter(job_ref=ref, job_owner=owner)
    rows = [row for row in usage_sums.points(uses, chosen) if row["held_s"]]
    covered = _coverage_pct(rows)
    rows = while_running(rows, runs, chosen.step, now)
    return {
        **ranges(chosen, now, ("life", "lifetime")),
        "history": drawn(job_panels(gpus, memory), rows, chosen, now, covered),
    }


def while_running(
    rows: Iterable[Row],
    runs: Sequence[tuple[datetime, datetime | None]],
    step: int,
    now: datetime,
) -> list[Row]:
    """The rows with `seen_s` cut to the seconds of each step in which the job ran.

    Means are then those of the running time, as in the job's result. Steps without any are omitted;
    so are steps of less than SHORTEST_MEAN_S, unless all are that short.
    """
    spans = [(begin.timestamp(), (end or now).timestamp()) for begin, end in runs]
    cut = list[Row]()
    for row in rows:
        t = row["t"]
        ran_s = sum(max(0.0, min(end, t + step) - max(begin, t)) for begin, end in spans)
        if ran_s > 0:
            cut.append({**row, "seen_s": min(row["seen_s"], ran_s)})
    return [row for row in cut if row["seen_s"] >= SHORTEST_MEAN_S] or cut


class MemoryLine(Struct, frozen=True):
    """A line in the chart of GPU memory: "requested 20 GiB"."""

    word: str
    size_bytes: int


def job_panels(gpus: int, memory: MemoryLine | None) -> list[Panel]:
    def utilisation(row: Row) -> float | None:
        used = _used(row)
        return None if used is None else min(100.0, 100 * used / gpus)

    return [
        Panel("GPU utilisation", "%", (ChartLine("mean", utilisation),), top=100),
        Panel(
            "GPU memory",
            "GiB",
            (ChartLine("mean", mean("memory_byte_s", "seen_s", GIB)),),
            top=in_gib(memory.size_bytes) if memory else None,
            limit=in_gib(memory.size_bytes) if memory else None,
            limit_word=memory.word if memory else "",
        ),
        Panel("Power", "W", (ChartLine("mean", _power),)),
    ]


def sums(ladder: RollupLevels, key: str, chosen: HistoryWindow) -> list[dict[str, Any]]:
    """Sums of a GPU or host for each step of the range."""
    models = {
        Source.RAW: ladder.samples,
        Source.MINUTE: ladder.minutes,
        Source.HOUR: ladder.hours,
    }
    return summed(models[chosen.source], ladder, key, chosen.since, chosen.until, chosen.step)


def drawn(
    shown: list[Panel], rows: Any, chosen: HistoryWindow, now: datetime, covered: float | None
) -> History:
    """Charts of these rows in the current time zone."""
    offset = now.astimezone(timezone.get_current_timezone()).utcoffset()
    seconds = offset.total_seconds() if offset else 0
    return chart_panels.history(shown, rows, chosen, covered, seconds)


def _retention() -> HistoryRange:
    config = settings.CONFIG
    return HistoryRange(config.raw_hours * 3600, config.minute_days * 86400)


def idle_processes(
    host: str, processes: Iterable[ProcessReading], now: datetime
) -> dict[tuple[str, int], datetime]:
    """{(GPU, pid): since when} of the processes that hold much memory and use little of the GPU.

    Processes that are not measured enough are omitted.
    """
    least = IDLE_GIB * GIB
    candidates = {(p.gpu_uuid, p.pid) for p in processes if (p.memory_bytes or 0) >= least}
    uses = ProcessUse.objects.filter(
        host=host, pid__in={pid for _, pid in candidates}, ended_at=None
    )
    uses_by_id = {use.pk: use for use in uses if (use.gpu_id, use.pid) in candidates}
    since = usage_sums.idle_since(
        uses_by_id.values(), now, below_pct=IDLE_PCT, coverage=COVERAGE_PCT / 100
    )
    return {
        (uses_by_id[pk].gpu_id, uses_by_id[pk].pid): begin
        for pk, begin in since.items()
        if (now - begin).total_seconds() >= LEAST_IDLE_S
    }
