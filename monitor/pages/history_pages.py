"""What the history pages show: windows, charts, sums and heat strips, ready for the templates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.conf import settings
from django.utils import timezone

from monitor import usage
from monitor.models import Gpu, ProcessUse
from monitor.pages import heat, history_charts, panels
from monitor.pages.history_charts import History, Panel, coverage
from monitor.policy import windows
from monitor.policy.windows import Kept, Source, Window
from monitor.rollups import GPUS, HOSTS, Ladder, summed

PROCESSES_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Ranges:
    """The choice of ranges above the charts."""

    window: Window
    names: tuple[tuple[str, str], ...]
    since: datetime
    until: datetime
    zone: str


def window(query: Mapping[str, str], now: datetime, default: str = windows.DEFAULT) -> Window:
    return windows.window(query, now, _kept(), timezone.get_current_timezone(), default)


def ranges(of: Window, now: datetime, *more: tuple[str, str]) -> dict[str, Any]:
    """Template variables of the choice of ranges, with further ones for this page."""
    names = (*more, *((name, words) for name, (words, _) in windows.RANGES.items()))
    since, until = (datetime.fromtimestamp(t, now.tzinfo) for t in (of.since, of.until))
    zone = timezone.get_current_timezone_name()
    return {"ranges": Ranges(of, names, since, until, zone), "window": of}


def gpu(row: Gpu, query: Mapping[str, str], now: datetime) -> dict[str, Any]:
    """What happened on a GPU, and who used it."""
    chosen = window(query, now)
    rows = sums(GPUS, row.uuid, chosen)
    people = usage.by_owner(row.uuid, chosen.in_minutes)
    return {
        **ranges(chosen, now),
        "history": drawn(panels.gpu(row, chosen), rows, chosen, now, coverage(rows, chosen)),
        "people": people,
        "strips": heat.strips([row], int(now.timestamp())),
    }


def host(name: str, memory_total_bytes: int | None, query: Any, now: datetime) -> dict[str, Any]:
    """What happened on a host, and who used its GPUs."""
    chosen = window(query, now)
    rows = sums(HOSTS, name, chosen)
    gpus = list(Gpu.objects.filter(host=name).order_by("index", "uuid"))
    return {
        **ranges(chosen, now),
        "history": drawn(
            panels.host(chosen, memory_total_bytes),
            rows,
            chosen,
            now,
            coverage(rows, chosen),
        ),
        "strips": heat.strips(gpus, int(now.timestamp())),
    }


def person(name: str, query: Mapping[str, str], now: datetime, details: bool) -> dict[str, Any]:
    """How much a person used, on which GPUs; with `details` by which processes."""
    chosen = window(query, now, "24h").in_minutes
    gpus = usage.by_gpu(name, chosen)
    rows = usage.points(usage.uses_of(name), chosen)
    used = usage.total(gpus)
    found = usage.by_process(name, chosen, PROCESSES_SHOWN) if details else []
    return {
        **ranges(chosen, now),
        "history": drawn(panels.person(), rows, chosen, now, used.coverage_pct),
        "gpus": gpus,
        "total": used,
        "processes": found,
    }


def between(since: int, until: int, now: datetime) -> Window:
    """The time of an incident."""
    return windows.between(since, until, now, _kept(), "incident")


def process(use: ProcessUse, query: Mapping[str, str], now: datetime) -> dict[str, Any]:
    """What a process did on its GPU; its whole life unless a range is asked for."""
    if query.get("range", "life") == "life" and not query.get("since"):
        end = int((use.ended_at or now).timestamp())
        begin = min(int(use.first_seen_at.timestamp()), end - windows.SHORTEST_S)
        chosen = windows.between(begin, end, now, _kept(), "life").in_minutes
    else:
        chosen = window(query, now).in_minutes
    only = ProcessUse.objects.filter(pk=use.pk)
    rows = [r for r in usage.points(only, chosen, use.host) if r["held_s"]]
    shown = panels.process(use.gpu.memory_total_bytes)
    covered = usage.Usage(
        held_s=sum(r["held_s"] for r in rows), known_s=sum(r["known_s"] for r in rows)
    ).coverage_pct
    return {
        **ranges(chosen, now, ("life", "its life")),
        "history": drawn(shown, rows, chosen, now, covered),
    }


def sums(ladder: Ladder, key: str, chosen: Window) -> list[dict[str, Any]]:
    """What is known of a GPU or host in each step."""
    models = {
        Source.RAW: ladder.samples,
        Source.MINUTE: ladder.minutes,
        Source.HOUR: ladder.hours,
    }
    return summed(models[chosen.source], ladder, key, chosen.since, chosen.until, chosen.step)


def drawn(
    shown: list[Panel], rows: Any, chosen: Window, now: datetime, covered: float | None
) -> History:
    """Charts of these rows in the zone of the viewers."""
    offset = now.astimezone(timezone.get_current_timezone()).utcoffset()
    seconds = offset.total_seconds() if offset else 0
    return history_charts.history(shown, rows, chosen, covered, seconds)


def _kept() -> Kept:
    config = settings.CONFIG
    return Kept(config.raw_hours * 3600, config.minute_days * 86400)
