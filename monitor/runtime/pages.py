"""The status page (loops, their processes, readings, storage), and /healthz."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from django.conf import settings
from django.contrib.auth.decorators import login_not_required
from django.db import DatabaseError, connection
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.urls import URLPattern, path
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe
from msgspec import Struct

from monitor.facts.readings import CallCost, Snapshot
from monitor.gpus.rows import snapshot as snapshot_rows
from monitor.models import Lease
from monitor.runtime.policy import LOOPS, LoopFact, LoopState, complete, judge, verdict, worst
from monitor.runtime.probes import disk_space, service_state
from monitor.runtime.probes.service_state import ChildState, ListenerState, ServiceState
from monitor.runtime.rows import database, leases
from monitor.runtime.rows.extensions import part

SWITCHED_OFF = "This part of gpucoord is switched off on this site (setting `extensions`)."
SHAPES = {LoopState.OK: "ok", LoopState.FAILING: "warning", LoopState.STALE: "failing"}
WORDS = {LoopState.OK: "running", LoopState.FAILING: "failing", LoopState.STALE: "not running"}
TASKS = {
    "sampler": "reads GPUs, processes and host",
    "controller": "detects incidents and load",
    "scheduler": "plans, starts and ends jobs",
}
MOST_CALLS = 8
# With less, the next write to a database or a log fails.
LEAST_FREE_BYTES = 1024**2
DISK_FULL = "The disk with the data of gpucoord is full"
# Sections of other apps: a template and the function that loads its `data`.
_sections: list[tuple[str, Callable[[], object]]] = []
LISTENERS = {
    "web": "pages, REST and live feed",
    "logs": "logs of this host, for the other hosts",
    "models": "endpoint for language models",
    "login": "logins by OS account",
}
CHILDREN = {
    "web": "pages and live feed",
    "tasks": "worker processes of the services",
    "reports": "reports and capacity planning; runs on demand",
    "models": "endpoint for language models, queue of prompts",
}


def extension_page(route: str, view: str, name: str) -> URLPattern:
    """The address of a view `module:function`; not found while its extension is off.

    The name stays, so that links to the page from elsewhere are still valid.
    """
    return path(route, part(view) or switched_off, name=name)


def switched_off(request: HttpRequest, **names: object) -> HttpResponse:
    raise Http404(SWITCHED_OFF)


class LoopRow(Struct, frozen=True):
    lease: Lease
    task: str
    shape: str
    word: str


class ChildRow(Struct, frozen=True):
    child: ChildState
    task: str
    since_at: datetime


class Storage(Struct, frozen=True):
    kind: str
    size_bytes: int | None
    free_bytes: int

    @property
    def is_full(self) -> bool:
        return self.free_bytes < LEAST_FREE_BYTES


class DriverCalls(Struct, frozen=True):
    """Durations of NVML calls on one host: the calls with the highest total time."""

    host: str
    costliest: Sequence[CallCost]
    kinds: int
    dropped: int


class StatusPage(Struct, frozen=True):
    verdict: str
    shape: str
    loops: Sequence[LoopRow]
    service: ServiceState | None
    started_at: datetime | None
    canary_at: datetime | None
    children: Sequence[ChildRow]
    listeners: Sequence[tuple[ListenerState, str]]
    snapshots: Sequence[Snapshot]
    driver_calls: Sequence[DriverCalls]
    storage: Storage
    sections: Sequence[tuple[str, object]]


def register(template: str, load: Callable[[], object]) -> None:
    """Add a section to the page."""
    if (template, load) not in _sections:
        _sections.append((template, load))


def build(host: str, now: datetime) -> StatusPage:
    rows = sorted(Lease.objects.all(), key=_usual_order)
    stored = [leases.fact(row) for row in rows]
    facts = [*complete(stored, host), *(fact for fact in stored if fact.host != host)]
    service = service_state.read(Path(settings.DATA) / "run")
    snapshots, storage = snapshot_rows.newest_all(), _storage()
    shape = SHAPES[worst(judge(fact, now) for fact in facts)]
    unusable = [each.problem for each in service.listeners if each.problem] if service else []
    return StatusPage(
        verdict=_verdict(storage, facts, unusable, now),
        shape="failing" if storage.is_full else "warning" if shape == "ok" and unusable else shape,
        loops=[_loop(row, now) for row in rows],
        service=service,
        started_at=_moment(service.started_t) if service else None,
        canary_at=_moment(service.canary_t) if service else None,
        children=[_child(child) for child in service.children] if service else [],
        listeners=[(each, LISTENERS.get(each.name, "")) for each in service.listeners]
        if service
        else [],
        snapshots=snapshots,
        driver_calls=[_driver_calls(snapshot) for snapshot in snapshots if snapshot.costs],
        storage=storage,
        sections=[(template, load()) for template, load in _sections],
    )


def _verdict(
    storage: Storage, facts: Sequence[LoopFact], unusable: Sequence[str], now: datetime
) -> str:
    """The cause comes before its effects. unusable: the problems of listeners."""
    if storage.is_full:
        return DISK_FULL
    is_ok = worst(judge(fact, now) for fact in facts) is LoopState.OK
    return unusable[0] if is_ok and unusable else verdict(facts, now)


def _driver_calls(snapshot: Snapshot) -> DriverCalls:
    costliest = sorted(snapshot.costs, key=lambda cost: -cost.count * cost.p50_ms)
    return DriverCalls(
        snapshot.host.name, costliest[:MOST_CALLS], len(snapshot.costs), snapshot.dropped
    )


def _usual_order(row: Lease) -> tuple[str, int, str]:
    return row.host, LOOPS.index(row.loop) if row.loop in LOOPS else len(LOOPS), row.loop


def _loop(row: Lease, now: datetime) -> LoopRow:
    state = judge(leases.fact(row), now)
    return LoopRow(row, TASKS.get(row.loop, ""), SHAPES[state], WORDS[state])


def _child(child: ChildState) -> ChildRow:
    since = datetime.fromtimestamp(child.since_t, UTC)
    return ChildRow(child, CHILDREN.get(child.name, ""), since)


def _moment(t: float | None) -> datetime | None:
    return None if t is None else datetime.fromtimestamp(t, UTC)


def _storage() -> Storage:
    """The size of a SQLite database, and the free space of the data folder."""
    free = disk_space.read(settings.DATA).available_bytes
    if connection.vendor != "sqlite":
        return Storage("PostgreSQL", None, free)
    try:
        size = Path(str(settings.DATABASES["default"]["NAME"])).stat().st_size
    except OSError:
        return Storage("SQLite", None, free)
    return Storage("SQLite", size, free)


# How much of an error /healthz shows without a login.
ERROR_LENGTH = 120


@login_not_required
@never_cache
@require_safe
def healthz(request: HttpRequest) -> HttpResponse:
    """200 when every loop of this host ticks; 503 when one is stale or the database is away."""
    now, host = timezone.now(), settings.CONFIG.node
    if problem := database.file_problem():
        gone = {"status": "database file gone", "problem": problem, "loops": {}}
        answer = JsonResponse(gone, status=503)
        # The supervisor logs the problem once; Django would log each request.
        answer._has_been_logged = True  # type: ignore[attr-defined]
        return answer
    try:
        facts = complete(leases.facts(host), host)
    except DatabaseError:
        return JsonResponse({"status": "no database", "loops": {}}, status=503)
    state = worst(judge(fact, now) for fact in facts)
    body = {"status": state.value, "loops": {f.loop: _brief(f, now) for f in facts}}
    response = JsonResponse(body, status=503 if state is LoopState.STALE else 200)
    # The supervisor asks every few seconds, and a stale loop is already in the log.
    response._has_been_logged = True  # type: ignore[attr-defined]
    return response


def _brief(fact: LoopFact, now: datetime) -> dict[str, Any]:
    age, lag = fact.age_s(now), fact.lateness_p99_ms
    return {
        "age_s": None if age is None else round(age, 3),
        "lag_ms": None if lag is None else round(lag, 3),
        "error": fact.error[:ERROR_LENGTH] if fact.error else None,
    }


@never_cache
@require_safe
def status(request: HttpRequest) -> HttpResponse:
    """Details for logged-in users. The page polls itself every 2 s."""
    page = build(settings.CONFIG.node, timezone.now())
    return render(request, "monitor/status.html", {"page": page})
