"""Pages of the monitor: the dashboard, one GPU, the processes."""

from __future__ import annotations

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, render
from django.utils import timezone
from django.views.decorators.http import require_safe

from monitor import events, gpu_closing, store
from monitor.models import Gpu
from monitor.pages import cards, history, history_pages, incident_badges, process_table
from monitor.pages.process_table import Wanted
from monitor.pages.rendering import DASHBOARD, GPU_PREFIX, PROCESSES, Renderer, digest
from monitor.policy import capability
from monitor.policy.health import clock_words
from monitor.policy.privacy import Viewer
from monitor.readings import Snapshot
from monitor.use_facts import InstanceReading


@require_safe
def dashboard(request: HttpRequest) -> HttpResponse:
    """Is everything fine, and who is on what?"""
    renderer = Renderer(history.sparks.get)
    frame = renderer.whole(store.newest_all(), [DASHBOARD], timezone.now())
    parts = list(frame.boards[DASHBOARD].parts)
    overview = [p for p in parts if not p.target.startswith("region-")]
    regions = [p for p in parts if p.target.startswith("region-")]
    columns = [regions[0::2], regions[1::2]]
    return render(request, "monitor/dashboard.html", {"overview": overview, "regions": columns})


@require_safe
def gpu(request: HttpRequest, uuid: str) -> HttpResponse:
    """What happened here?"""
    row = get_object_or_404(Gpu, uuid=uuid)
    snapshots = store.newest_all()
    wanted = Wanted.from_query(request.GET)
    badges = incident_badges.current(timezone.now())
    found = process_table.lines(snapshots, viewer_of(request), uuid, badges)
    reading = next((g for s in snapshots for g in s.gpus if g.uuid == uuid), None)
    health = next((h for s in snapshots for h in s.health if h.gpu_uuid == uuid), None)
    context = {
        **history_pages.gpu(row, request.GET, timezone.now()),
        "gpu": row,
        "card": next((c for c in cards.cards(snapshots, badges) if c.uuid == uuid), None),
        "reading": reading,
        "capability": capability.of(reading, settings.CONFIG.gpu_power) if reading else None,
        "health": health,
        "clock_words": clock_words(health),
        "instances": _instances(snapshots, uuid),
        "lines": process_table.with_history(process_table.choose(found, wanted)),
        "wanted": wanted,
        "closures": {c.kind.value: c for c in gpu_closing.on(row.host) if c.gpu_uuid == uuid},
        "may_close": viewer_of(request).operator,
        "events": events.recent(8, gpu_uuid=uuid),
        "topic": f"{GPU_PREFIX}{uuid}",
        "digest": digest(snapshots, uuid, badges),
    }
    return render(request, "monitor/gpu.html", context)


@require_safe
def processes(request: HttpRequest) -> HttpResponse:
    """Who runs what, on which GPU?"""
    snapshots = store.newest_all()
    wanted = Wanted.from_query(request.GET)
    badges = incident_badges.current(timezone.now())
    found = process_table.lines(snapshots, viewer_of(request), badges=badges)
    context = {
        "lines": process_table.with_history(process_table.choose(found, wanted)),
        "all": len(found),
        "wanted": wanted,
        "owners": sorted({line.row.owner for line in found if line.row.owner}),
        "gpus": _gpu_choices(found),
        "several": len(snapshots) > 1,
        "topic": PROCESSES,
        "digest": digest(snapshots, badges=badges),
    }
    return render(request, "monitor/processes.html", context)


def _instances(snapshots: list[Snapshot], uuid: str) -> list[tuple[InstanceReading, int]]:
    """The MIG instances of a GPU, each with how many processes are in it."""
    return [
        (found, sum(p.instance == found.instance for p in snapshot.on(uuid)))
        for snapshot in snapshots
        for found in snapshot.instances
        if found.gpu_uuid == uuid
    ]


def viewer_of(request: HttpRequest) -> Viewer:
    """Who looks at this page."""
    return Viewer(request.user.get_username(), operator=bool(getattr(request.user, "is_staff", 0)))


def _gpu_choices(found: list[process_table.ProcessLine]) -> list[tuple[str, str]]:
    """(value, words) of each GPU that has a process, by host and index."""
    known = sorted({(line.host, line.gpu_index) for line in found})
    several = len({host for host, _ in known}) > 1
    return [(f"{h}:{i}", f"{h} GPU {i}" if several else f"GPU {i}") for h, i in known]
