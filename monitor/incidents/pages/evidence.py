"""Content of an incident's page: measurements around it, enforcement steps and mails."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from django.db.models import QuerySet

from monitor.facts.formats import GIB
from monitor.incidents import facts as rules
from monitor.incidents.policy.enforcement import TITLES, Step
from monitor.incidents.policy.thresholds import GpuTimePolicy
from monitor.incidents.rules.cpu import CPU_PCT
from monitor.incidents.rules.memory import HOG_PCT
from monitor.models import Claim, Gpu, Incident, Message, ProcessUse, Response
from monitor.owners.identity.policy import Viewer
from monitor.pages.live.cards import in_gib
from monitor.thresholds import rows as thresholds
from monitor.usage.history.pages import content as history_content
from monitor.usage.history.pages.chart_panels import (
    ChartLine,
    Panel,
    Row,
    Value,
    highest,
    mean,
    moments,
)
from monitor.usage.policy import ranges as usage_ranges
from monitor.usage.policy.ranges import HistoryWindow
from monitor.usage.rows import processes as usage_sums
from monitor.usage.rows.rollups import GPUS, HOSTS

# The shortest and longest time shown before the incident.
BEFORE_S = 900
MOST_BEFORE_S = 6 * 3600


def evidence(incident: Incident, query: Mapping[str, str], now: datetime) -> dict[str, Any]:
    """Template variables: charts of the incident's time, or of the range in the query."""
    chosen = _window(incident, query, now).in_minutes
    hogs = thresholds.current(GpuTimePolicy)
    rows = _rows(incident, chosen)
    seen_s = sum(row["seen_s"] for row in rows)
    covered = min(100.0, 100 * seen_s / chosen.seconds) if chosen.seconds else None
    drawn = history_content.drawn(_panels(incident, hogs), rows, chosen, now, covered)
    is_over = incident.closed_at is not None
    marks = {
        "began": incident.since_at.timestamp(),
        "ended": incident.last_seen_at.timestamp() if is_over else None,
    }
    return {
        **history_content.ranges(chosen, now, ("incident", "the incident")),
        "history": replace(drawn, moments=moments(chosen, marks)),
    }


def _window(incident: Incident, query: Mapping[str, str], now: datetime) -> HistoryWindow:
    if query.get("range", "incident") != "incident" or query.get("since"):
        return history_content.window(query, now)
    begin = int(incident.since_at.timestamp())
    end = int((incident.closed_at or now).timestamp())
    before = min(max(BEFORE_S, (end - begin) // 4), MOST_BEFORE_S)
    return history_content.between(begin - before, max(end, begin + usage_ranges.SHORTEST_S), now)


def _rows(incident: Incident, chosen: HistoryWindow) -> list[Any]:
    if incident.rule == rules.ORPHANED:
        return history_content.sums(GPUS, incident.gpu_id or "", chosen)
    if incident.rule == rules.CPU_HOG:
        return history_content.sums(HOSTS, incident.host, chosen)
    return usage_sums.points(_uses(incident), chosen, incident.host)


def _uses(incident: Incident) -> QuerySet[ProcessUse]:
    """The process uses that are the evidence."""
    uses = ProcessUse.objects.filter(host=incident.host)
    if incident.rule == rules.FAIR_SHARE:
        return usage_sums.uses_of(incident.user).filter(host=incident.host)
    if incident.rule in (rules.CLAIMED_EMPTY, rules.UNUSED_GPUS):
        return uses.filter(job_ref=incident.job_ref)
    if incident.rule == rules.OVER_MEMORY:
        return uses.filter(job_ref=incident.job_ref, gpu_id=incident.gpu_id)
    if incident.rule in (rules.LEAK, rules.IDLE_HELD, rules.EXTRA_GPUS) or not incident.user:
        return uses.filter(
            gpu_id=incident.gpu_id, pid=incident.pid or 0, start_ticks=incident.start_ticks or 0
        )
    return uses.filter(
        gpu_id=incident.gpu_id, user=incident.user, container=incident.container, job_ref=""
    )


def _panels(incident: Incident, hogs: GpuTimePolicy) -> list[Panel]:
    total = incident.gpu.memory_total_bytes if incident.gpu else None
    if incident.rule == rules.ORPHANED:
        held = mean("memory_byte_s", "memory_known_s", GIB)
        return [
            Panel("Memory in use", "GiB", (ChartLine("mean", held),), top=in_gib(total)),
            _gpu_use(),
        ]
    if incident.rule == rules.CPU_HOG:
        return [_banded("CPU", "%", mean("cpu_pct_s", "cpu_known_s"), 100, CPU_PCT)]
    if incident.rule == rules.FAIR_SHARE:
        count = max(1, Gpu.objects.filter(host=incident.host).count())
        share = _part_of(count)
        return [_banded("Share of all GPUs", "%", share, 100, incident.expected_pct)]
    use, held_limit = _limits(incident, hogs, total)
    several = incident.rule == rules.UNUSED_GPUS
    top = None if several else in_gib(total)
    return [
        _banded("GPUs used" if several else "Share of the GPU", *_scale(several), use),
        _banded("Memory held", "GiB", _held, top, held_limit),
    ]


def _scale(several: bool) -> tuple[str, Value, float]:
    return ("", _part_of(100), 1.0) if several else ("%", _part_of(1), 100.0)


def _limits(
    incident: Incident, hogs: GpuTimePolicy, total: int | None
) -> tuple[float | None, float | None]:
    """The rule's thresholds on use (%) and on memory (GiB)."""
    if incident.rule == rules.SUSTAINED:
        return hogs.sustained_pct, None
    if incident.rule == rules.MEMORY_HOG and total:
        return None, HOG_PCT / 100 * total / GIB
    if incident.rule == rules.OVER_MEMORY:
        booked = Claim.objects.filter(job_ref=incident.job_ref, gpu_uuid=incident.gpu_id)
        size = booked.values_list("memory_bytes", flat=True).first()
        return None, size / GIB if size else None
    return None, None


def _banded(title: str, unit: str, value: Value, top: float | None, limit: float | None) -> Panel:
    """A chart with a band above the threshold."""
    return Panel(title, unit, (ChartLine("mean", value),), top=top, limit=limit, band=True)


def _gpu_use() -> Panel:
    used = mean("utilization_pct_s", "utilization_known_s")
    peak = ChartLine("highest", highest("utilization_max_pct"), "peak")
    return Panel("Utilisation", "%", (ChartLine("mean", used), peak), top=100)


def _part_of(gpus: int) -> Value:
    """Used GPU time in percent of `gpus` GPUs. None: less than half of the time was measured."""

    def value(row: Row) -> float | None:
        if not row["seen_s"] or row["known_s"] < row["held_s"] / 2:
            return None
        return min(100.0, 100 * float(row["sm_s"]) / (gpus * float(row["seen_s"])))

    return value


def _held(row: Row) -> float | None:
    """Memory held, summed over the processes. None: unknown."""
    if not row["held_s"]:
        return 0.0 if row["seen_s"] else None
    if not row["memory_known_s"]:
        return None
    known_s = min(float(row["memory_known_s"]), float(row["seen_s"]))
    return float(row["memory_byte_s"]) / known_s / GIB if known_s else None


SHAPES = {
    Response.State.PLANNED: ("waiting", "planned"),
    Response.State.DONE: ("busy", "done"),
    Response.State.REFUSED: ("warning", "not possible"),
    Response.State.UNDONE: ("ok", "reverted"),
}
MAILS = {
    Message.State.WAITING: ("waiting", "sending"),
    Message.State.SENT: ("busy", "sent"),
    Message.State.FAILED: ("failing", "failed"),
    Message.State.DROPPED: ("unknown", "not sent"),
}


@dataclass(frozen=True, slots=True)
class ResponseRow:
    """A step or a mail. `shape` and `state` are its badge. `until`: when it was reverted."""

    at: datetime
    title: str
    shape: str
    state: str
    text: str
    until: datetime | None = None


def response_lines(incident: Incident, viewer: Viewer) -> list[ResponseRow]:
    """Only operators see the errors of mails, because these name services."""
    steps = [_step(row) for row in Response.objects.filter(incident=incident)]
    mails = Message.objects.filter(incident=incident).exclude(person="")
    return sorted([*steps, *(_mail(row, viewer) for row in mails)], key=lambda line: line.at)


def _step(row: Response) -> ResponseRow:
    shape, state = SHAPES[Response.State(row.state)]
    title = TITLES[Step(row.step)]
    if row.is_dry_run:
        return ResponseRow(row.at, title, "idle", "dry run", row.text)
    until = row.undone_at if row.state == Response.State.UNDONE else None
    return ResponseRow(row.at, title, shape, state, row.text, until)


def _mail(row: Message, viewer: Viewer) -> ResponseRow:
    shape, state = MAILS[Message.State(row.state)]
    if row.state == Message.State.WAITING and row.attempts:
        shape, state = "warning", "retrying"
    text = f"To {row.person}"
    if row.problem and viewer.operator:
        text = f"{text}: {row.problem}"
    return ResponseRow(row.sent_at or row.created_at, "Mail", shape, state, text)
