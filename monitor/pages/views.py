"""Pages with live figures: the dashboard, one GPU, and the table of processes."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from django.conf import settings
from django.db.models import Avg
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, render
from django.utils import timezone
from django.views.decorators.http import require_safe
from msgspec import Struct
from msgspec.structs import replace

from monitor.facts.incidents import NONE, Badges
from monitor.facts.input_rules import escaped
from monitor.facts.readings import GpuReading, InstanceReading, ProcessReading, Snapshot
from monitor.gpus.policy import capability
from monitor.gpus.policy.health import clock_words
from monitor.gpus.policy.states import as_booked
from monitor.gpus.rows import closures as gpu_closures
from monitor.gpus.rows import snapshot as snapshot_rows
from monitor.incidents import pages as incident_badges
from monitor.journal.rows import events
from monitor.models import Gpu, ProcessUse, Sample
from monitor.owners.policy import Viewer, owns, redact
from monitor.pages import cards
from monitor.pages.cards import ProcessRow
from monitor.pages.frames import regions, silent_hosts
from monitor.pages.rendering import DASHBOARD, GPU_PREFIX, PROCESSES, Renderer, digest
from monitor.pages.requests import viewer_of
from monitor.usage import charts
from monitor.usage.pages import content as history_content
from monitor.usage.rows.rollups import start_of

KINDS = {"C": "compute", "G": "graphics", "M": "MPS"}
MOST_MEMORY_FIRST = "-memory"
EARLIEST, LATEST = datetime(1970, 1, 1, tzinfo=UTC), datetime(9999, 1, 1, tzinfo=UTC)


class ProcessLine(Struct, frozen=True):
    """A process on a GPU. `command` None: hidden from this viewer or unknown."""

    row: ProcessRow
    host: str
    gpu_uuid: str
    gpu_index: int
    created_at: datetime | None
    command: str | None
    hidden: bool
    kinds: str
    container: str | None = None
    start_ticks: int | None = None
    use_id: int | None = None
    idle_since: datetime | None = None

    def matches(self, text: str) -> bool:
        words = (
            self.row.owner,
            self.row.program,
            self.command,
            str(self.row.pid),
            self.container,
        )
        job = f"job {self.row.job_ref}" if self.row.job_ref else None
        return any(text.lower() in word.lower() for word in (*words, job) if word)


class ProcessFilters(Struct, frozen=True):
    """Filters and order from the query. `gpu` is "host:index"."""

    text: str = ""
    owner: str = ""
    gpu: str = ""
    sort: str = MOST_MEMORY_FIRST

    @classmethod
    def from_query(cls, query: Mapping[str, Any]) -> ProcessFilters:
        sort = str(query.get("sort", ""))
        return cls(
            text=str(query.get("q", "")).strip(),
            owner=str(query.get("owner", "")),
            gpu=str(query.get("gpu", "")),
            sort=sort if sort.removeprefix("-") in SORTS else MOST_MEMORY_FIRST,
        )


SORTS: dict[str, Callable[[ProcessLine], Any]] = {
    "gpu": lambda line: (line.host, line.gpu_index),
    "owner": lambda line: line.row.owner or "\uffff",
    "program": lambda line: line.row.program or "\uffff",
    "pid": lambda line: line.row.pid,
    "since": lambda line: line.created_at or EARLIEST,
    "memory": lambda line: line.row.memory_bytes or -1,
    "idle": lambda line: -(line.idle_since or LATEST).timestamp(),
    "share": lambda line: -1 if line.row.sm_pct is None else line.row.sm_pct,
}


class OwnerTotal(Struct, frozen=True):
    """Totals of the listed processes of one owner. None: unknown.

    share_pct: in percent of one GPU. idle_bytes: memory that nothing uses.
    """

    owner: str | None
    processes: int
    gpus: int
    memory_bytes: int | None
    share_pct: float | None
    idle_bytes: int


def totals(lines: Sequence[ProcessLine]) -> list[OwnerTotal]:
    """One entry for each owner, most memory first."""
    by_owner: dict[str | None, list[ProcessLine]] = {}
    for line in lines:
        by_owner.setdefault(line.row.owner, []).append(line)
    by_user = [_total(owner, own) for owner, own in by_owner.items()]
    return sorted(by_user, key=lambda total: (-(total.memory_bytes or 0), total.owner or ""))


def _total(owner: str | None, own: Sequence[ProcessLine]) -> OwnerTotal:
    memory = [line.row.memory_bytes for line in own]
    shares = [line.row.sm_pct for line in own]
    return OwnerTotal(
        owner=owner,
        processes=len({(line.host, line.row.pid) for line in own}),
        gpus=len({line.gpu_uuid for line in own}),
        memory_bytes=None if None in memory else sum(m for m in memory if m),
        share_pct=None if None in shares else sum(s for s in shares if s),
        idle_bytes=sum(line.row.memory_bytes or 0 for line in own if line.idle_since),
    )


def with_idle(
    lines: Sequence[ProcessLine], snapshots: Iterable[Snapshot], now: datetime
) -> list[ProcessLine]:
    """The lines with the time since when nothing has used their memory."""
    idle = {
        (snapshot.host.name, *key): since
        for snapshot in snapshots
        for key, since in history_content.idle_processes(
            snapshot.host.name, snapshot.processes, now
        ).items()
    }
    return [
        replace(line, idle_since=idle.get((line.host, line.gpu_uuid, line.row.pid)))
        for line in lines
    ]


def lines(
    snapshots: Iterable[Snapshot],
    viewer: Viewer,
    gpu_uuid: str | None = None,
    badges: Badges = NONE,
) -> list[ProcessLine]:
    """All processes on GPUs, or on one GPU, with the commands that `viewer` may see."""
    return [
        _line(process, snapshot, indexes[process.gpu_uuid], viewer, badges)
        for snapshot in (redact(s, viewer) for s in snapshots)
        if (indexes := {gpu.uuid: gpu.index for gpu in snapshot.gpus})
        for process in snapshot.processes
        if process.gpu_uuid in indexes and gpu_uuid in (None, process.gpu_uuid)
    ]


def choose(lines: Sequence[ProcessLine], filters: ProcessFilters) -> list[ProcessLine]:
    """The matching lines in the chosen order; equal lines by memory, then PID."""
    chosen = [
        line
        for line in lines
        if line.matches(filters.text)
        and filters.owner in ("", line.row.owner)
        and filters.gpu in ("", f"{line.host}:{line.gpu_index}")
    ]
    chosen.sort(key=lambda line: (-(line.row.memory_bytes or 0), line.row.pid))
    chosen.sort(key=SORTS[filters.sort.removeprefix("-")], reverse=filters.sort.startswith("-"))
    return chosen


def with_history(lines: Sequence[ProcessLine]) -> list[ProcessLine]:
    """The lines with their history rows, if the viewer may open them."""
    pids = {line.row.pid for line in lines if not line.hidden}
    hosts = {line.host for line in lines}
    rows = ProcessUse.objects.filter(host__in=hosts, pid__in=pids, ended_at=None)
    ids = {(row.host, row.pid, row.gpu_id): row for row in rows}

    def use_of(line: ProcessLine) -> int | None:
        row = ids.get((line.host, line.row.pid, line.gpu_uuid))
        # The account numbers processes with an unknown start itself.
        is_same = row is not None and line.start_ticks in (None, row.start_ticks)
        return row.pk if row is not None and is_same else None

    return [line if line.hidden else replace(line, use_id=use_of(line)) for line in lines]


def _line(
    process: ProcessReading, snapshot: Snapshot, index: int, viewer: Viewer, badges: Badges
) -> ProcessLine:
    return ProcessLine(
        row=cards.process_row(process, badges),
        host=snapshot.host.name,
        gpu_uuid=process.gpu_uuid,
        gpu_index=index,
        created_at=process.created_at,
        command=escaped(shlex.join(process.command)) if process.command else None,
        hidden=not (viewer.operator or owns(process, viewer)),
        kinds=", ".join(KINDS.get(kind, kind) for kind in process.kinds),
        start_ticks=process.start_ticks,
        container=process.container,
    )


# Filters of the board: name in the address, words.
FILTERS = (("all", "All"), ("free", "Free"), ("trouble", "Trouble"), ("mine", "Mine"))


@require_safe
def dashboard(request: HttpRequest) -> HttpResponse:
    renderer = Renderer(snapshot_rows.bookings)
    frame = renderer.whole(snapshot_rows.newest_all(), [DASHBOARD], timezone.now())
    parts = frame.boards[DASHBOARD].parts
    placed = {region.element_id: region.is_right for region in regions()}
    show = request.GET.get("show", "")
    context = {
        "overview": [p for p in parts if p.target not in placed],
        "regions": [[p for p in parts if placed.get(p.target) is side] for side in (False, True)],
        "filters": FILTERS,
        "show": show if show in dict(FILTERS) else "all",
    }
    return render(request, "monitor/dashboard.html", context)


@require_safe
def gpu_card(request: HttpRequest, uuid: str) -> HttpResponse:
    """The detail below the row of a GPU, without the rest of a page; the same for all viewers."""
    bookings = snapshot_rows.bookings()
    snapshots = [as_booked(s, bookings.claims) for s in snapshot_rows.newest_all()]
    now = timezone.now()
    badges, silent = incident_badges.current(now), silent_hosts(snapshots, now)
    of_gpu = [s for s in snapshots if any(g.uuid == uuid for g in s.gpus)]
    shown = cards.cards(of_gpu, badges, bookings.tasks, silent)
    card = next((card for card in shown if card.uuid == uuid), None)
    if card is None:
        raise Http404
    context = {"card": card, "spark": draw(uuid, now)}
    return render(request, "monitor/_card.html", context)


@require_safe
def gpu(request: HttpRequest, uuid: str) -> HttpResponse:
    row = get_object_or_404(Gpu, uuid=uuid)
    bookings = snapshot_rows.bookings()
    snapshots = [as_booked(s, bookings.claims) for s in snapshot_rows.newest_all()]
    filters = ProcessFilters.from_query(request.GET)
    badges = incident_badges.current(timezone.now())
    table = lines(snapshots, viewer_of(request), uuid, badges)
    shown = cards.cards(snapshots, badges, bookings.tasks)
    of_gpu = [s for s in snapshots if any(g.uuid == uuid for g in s.gpus)]
    reading = next((g for s in of_gpu for g in s.gpus if g.uuid == uuid), None)
    health = next((h for s in snapshots for h in s.health if h.gpu_uuid == uuid), None)
    context = {
        **history_content.gpu(row, request.GET, timezone.now()),
        "gpu": row,
        "card": next((c for c in shown if c.uuid == uuid), None),
        "reading": reading,
        "unsupported": _unsupported(reading) if reading else "",
        "is_stated": reading is not None and capability.is_stated(reading),
        "capability": capability.of(reading, settings.CONFIG.gpu_power) if reading else None,
        "health": health,
        "clock_words": clock_words(health),
        "instances": _instances(snapshots, uuid),
        "lines": with_history(choose(table, filters)),
        "filters": filters,
        "closures": {c.kind.value: c for c in gpu_closures.on(row.host) if c.gpu_uuid == uuid},
        "may_close": viewer_of(request).operator,
        "events": events.recent(8, gpu_uuid=uuid),
        "topic": f"{GPU_PREFIX}{uuid}",
        "digest": digest(of_gpu, uuid, badges),
    }
    return render(request, "monitor/gpu.html", context)


@require_safe
def processes(request: HttpRequest) -> HttpResponse:
    snapshots = snapshot_rows.newest_all()
    filters = ProcessFilters.from_query(request.GET)
    now = timezone.now()
    badges = incident_badges.current(now)
    silent = silent_hosts(snapshots, now)
    table = with_idle(lines(snapshots, viewer_of(request), badges=badges), snapshots, now)
    chosen = choose(table, filters)
    context = {
        "lines": with_history(chosen),
        "totals": totals(chosen),
        "all": len(table),
        "filters": filters,
        "owners": sorted({line.row.owner for line in table if line.row.owner}),
        "gpus": _gpu_choices(table),
        "several": len(snapshots) > 1,
        "topic": PROCESSES,
        "silent": silent,
        "digest": digest(snapshots, badges=badges, silent=silent),
    }
    return render(request, "monitor/processes.html", context)


def _unsupported(reading: GpuReading) -> str:
    """The fields that the GPU does not have, in words: "power, temperature"."""
    words = (name.rpartition("_")[0] or name for name in reading.unsupported or ())
    return ", ".join(dict.fromkeys(word.replace("_", " ") for word in words))


def _instances(snapshots: list[Snapshot], uuid: str) -> list[tuple[InstanceReading, int]]:
    """The MIG instances of a GPU, each with its number of processes."""
    return [
        (instance, sum(p.instance == instance.instance for p in snapshot.on(uuid)))
        for snapshot in snapshots
        for instance in snapshot.instances
        if instance.gpu_uuid == uuid
    ]


def _gpu_choices(lines: list[ProcessLine]) -> list[tuple[str, str]]:
    """(value, words) of each GPU with a process, by host and index."""
    gpus = sorted({(line.host, line.gpu_index) for line in lines})
    several = len({host for host, _ in gpus}) > 1
    return [(f"{h}:{i}", f"{h} GPU {i}" if several else f"GPU {i}") for h, i in gpus]


# The sparkline of a GPU's last hour. The database computes the averages.

SPARK_S, SPARK_STEP_S = 3600, 60


class SparklinePath(Struct, frozen=True):
    """Paths of a 60-minute sparkline."""

    line: str
    area: str


def draw(uuid: str, now: datetime) -> SparklinePath:
    until = int(now.timestamp())
    since = until - SPARK_S
    samples = Sample.objects.filter(gpu_id=uuid, t__gte=since, t__lte=until)
    minutes = samples.annotate(start=start_of(SPARK_STEP_S)).order_by("start").values("start")
    means = minutes.annotate(mean=Avg("utilization_pct")).values_list("start", "mean")
    points = [(start + SPARK_STEP_S / 2, mean) for start, mean in means]
    return SparklinePath(*charts.spark(points, since, until, SPARK_STEP_S))
