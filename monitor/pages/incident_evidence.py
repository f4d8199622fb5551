"""The evidence of an incident: what was measured before, while and after it held."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from django.db.models import QuerySet

from monitor import policies, usage
from monitor.formats import GIB
from monitor.models import Claim, Gpu, Incident, ProcessUse
from monitor.pages import history_pages
from monitor.pages.cards import in_gib
from monitor.pages.history_charts import Line, Panel, Row, Value, highest, mean, moments
from monitor.policy import hog_rules as rules
from monitor.policy import windows
from monitor.policy.hog_policies import HogPolicy, MemoryPolicy
from monitor.policy.windows import Window
from monitor.rollups import GPUS, HOSTS

# How much of the time before it is shown with it, at least.
BEFORE_S = 900
MOST_BEFORE_S = 6 * 3600


def evidence(incident: Incident, query: Mapping[str, str], now: datetime) -> dict[str, Any]:
    """Template variables: charts of its time, or of the range that is asked for."""
    chosen = _window(incident, query, now).in_minutes
    force = policies.InForce()
    hogs, memory = force.of(HogPolicy), force.of(MemoryPolicy)
    rows = _rows(incident, chosen)
    seen = sum(row["seen_s"] for row in rows)
    covered = min(100.0, 100 * seen / chosen.seconds) if chosen.seconds else None
    drawn = history_pages.drawn(_panels(incident, hogs, memory), rows, chosen, now, covered)
    is_over = incident.closed_at is not None
    happened = {
        "began": incident.since_at.timestamp(),
        "ended": incident.last_seen_at.timestamp() if is_over else None,
    }
    return {
        **history_pages.ranges(chosen, now, ("incident", "the incident")),
        "history": replace(drawn, moments=moments(chosen, happened)),
    }


def _window(incident: Incident, query: Mapping[str, str], now: datetime) -> Window:
    if query.get("range", "incident") != "incident" or query.get("since"):
        return history_pages.window(query, now)
    begin = int(incident.since_at.timestamp())
    end = int((incident.closed_at or now).timestamp())
    before = min(max(BEFORE_S, (end - begin) // 4), MOST_BEFORE_S)
    return history_pages.between(begin - before, max(end, begin + windows.SHORTEST_S), now)


def _rows(incident: Incident, chosen: Window) -> list[Any]:
    if incident.rule == rules.ORPHANED:
        return history_pages.sums(GPUS, incident.gpu_id or "", chosen)
    if incident.rule == rules.CPU_HOG:
        return history_pages.sums(HOSTS, incident.host, chosen)
    return usage.points(_uses(incident), chosen, incident.host)


def _uses(incident: Incident) -> QuerySet[ProcessUse]:
    """Whose use is the evidence."""
    uses = ProcessUse.objects.filter(host=incident.host)
    if incident.rule == rules.FAIR_SHARE:
        return usage.uses_of(incident.user).filter(host=incident.host)
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


def _panels(incident: Incident, hogs: HogPolicy, memory: MemoryPolicy) -> list[Panel]:
    total = incident.gpu.memory_total_bytes if incident.gpu else None
    if incident.rule == rules.ORPHANED:
        held = mean("memory_byte_s", "memory_known_s", GIB)
        return [
            Panel("Memory in use", "GiB", (Line("mean", held),), top=in_gib(total)),
            _gpu_use(),
        ]
    if incident.rule == rules.CPU_HOG:
        return [_banded("CPU", "%", mean("cpu_pct_s", "cpu_known_s"), 100, hogs.cpu_pct)]
    if incident.rule == rules.FAIR_SHARE:
        count = max(1, Gpu.objects.filter(host=incident.host).count())
        share = _part_of(count)
        return [_banded("Share of all GPUs", "%", share, 100, incident.expected_pct)]
    use, held_limit = _limits(incident, hogs, memory, total)
    several = incident.rule == rules.UNUSED_GPUS
    top = None if several else in_gib(total)
    return [
        _banded("GPUs used" if several else "Share of the GPU", *_scale(several), use),
        _banded("Memory held", "GiB", _held, top, held_limit),
    ]


def _scale(several: bool) -> tuple[str, Value, float]:
    return ("", _part_of(100), 1.0) if several else ("%", _part_of(1), 100.0)


def _limits(
    incident: Incident, hogs: HogPolicy, memory: MemoryPolicy, total: int | None
) -> tuple[float | None, float | None]:
    """The rule's thresholds on use (%) and on memory (GiB)."""
    if incident.rule == rules.SUSTAINED:
        return hogs.sustained_pct, None
    if incident.rule == rules.MEMORY_HOG and total:
        return None, memory.hog_pct / 100 * total / GIB
    if incident.rule == rules.OVER_MEMORY:
        booked = Claim.objects.filter(job_ref=incident.job_ref, gpu_uuid=incident.gpu_id)
        size = booked.values_list("memory_bytes", flat=True).first()
        return None, size / GIB if size else None
    return None, None


def _banded(title: str, unit: str, value: Value, top: float | None, limit: float | None) -> Panel:
    """A chart in which all above the threshold is a band."""
    return Panel(title, unit, (Line("mean", value),), top=top, limit=limit, band=True)


def _gpu_use() -> Panel:
    used = mean("utilization_pct_s", "utilization_known_s")
    peak = Line("highest", highest("utilization_max_pct"), "peak")
    return Panel("Utilisation", "%", (Line("mean", used), peak), top=100)


def _part_of(gpus: int) -> Value:
    """Used GPU time in percent of so many GPUs; unknown when most of it was not measured."""

    def value(row: Row) -> float | None:
        if not row["seen_s"] or row["known_s"] < row["held_s"] / 2:
            return None
        return min(100.0, 100 * float(row["sm_s"]) / (gpus * float(row["seen_s"])))

    return value


def _held(row: Row) -> float | None:
    """While it was there; of several processes all that they held together."""
    if not row["held_s"]:
        return 0.0 if row["seen_s"] else None
    if not row["memory_byte_s"] and row["peak_memory_bytes"] is None:
        return None
    return float(row["memory_byte_s"]) / min(float(row["held_s"]), float(row["seen_s"])) / GIB
