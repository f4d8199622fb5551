"""What the status page shows: the loops, the processes behind them, the readings, the storage."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from django.conf import settings
from django.db import connection

from monitor import leases, service_state, store
from monitor.models import Lease
from monitor.policy.loop_health import LOOPS, LoopState, complete, judge, verdict, worst
from monitor.readings import Snapshot
from monitor.service_state import ChildState, ServiceState
from monitor.use_facts import CallCost

SHAPES = {LoopState.OK: "ok", LoopState.FAILING: "warning", LoopState.STALE: "failing"}
WORDS = {LoopState.OK: "ticks", LoopState.FAILING: "fails", LoopState.STALE: "stands still"}
TASKS = {
    "sampler": "reads GPUs, processes and host",
    "controller": "judges load and pressure",
    "scheduler": "plans, starts and ends jobs",
}
DEAREST = 8
# What other apps add: a template with its `data`.
_sections: list[tuple[str, Callable[[], object]]] = []
CHILDREN = {"web": "pages and live feed", "tasks": "the loops' workers"}


@dataclass(frozen=True, slots=True)
class LoopRow:
    lease: Lease
    task: str
    shape: str
    word: str


@dataclass(frozen=True, slots=True)
class ChildRow:
    child: ChildState
    task: str
    since_at: datetime


@dataclass(frozen=True, slots=True)
class Storage:
    kind: str
    size_bytes: int | None
    free_bytes: int | None


@dataclass(frozen=True, slots=True)
class Questions:
    """What asking the driver costs on one host: the kinds of call that took most time in all."""

    host: str
    dearest: Sequence[CallCost]
    kinds: int
    dropped: int


@dataclass(frozen=True, slots=True)
class StatusPage:
    verdict: str
    shape: str
    loops: Sequence[LoopRow]
    service: ServiceState | None
    started_at: datetime | None
    canary_at: datetime | None
    children: Sequence[ChildRow]
    snapshots: Sequence[Snapshot]
    questions: Sequence[Questions]
    storage: Storage
    sections: Sequence[tuple[str, object]]


def register(template: str, load: Callable[[], object]) -> None:
    """Add a section to the page."""
    if (template, load) not in _sections:
        _sections.append((template, load))


def build(host: str, now: datetime) -> StatusPage:
    rows = sorted(Lease.objects.all(), key=_usual_order)
    known = [leases.fact(row) for row in rows]
    facts = [*complete(known, host), *(f for f in known if f.host != host)]
    service = service_state.read(Path(settings.DATA) / "run")
    snapshots = store.newest_all()
    return StatusPage(
        verdict=verdict(facts, now),
        shape=SHAPES[worst(judge(fact, now) for fact in facts)],
        loops=[_loop(row, now) for row in rows],
        service=service,
        started_at=_moment(service.started_t) if service else None,
        canary_at=_moment(service.canary_t) if service else None,
        children=[_child(child) for child in service.children] if service else [],
        snapshots=snapshots,
        questions=[_questions(snapshot) for snapshot in snapshots if snapshot.costs],
        storage=_storage(),
        sections=[(template, load()) for template, load in _sections],
    )


def _questions(snapshot: Snapshot) -> Questions:
    dearest = sorted(snapshot.costs, key=lambda cost: -cost.count * cost.p50_ms)
    return Questions(snapshot.host.name, dearest[:DEAREST], len(snapshot.costs), snapshot.dropped)


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
    """The database's size where it is a file of ours, and the room beside it."""
    disk = os.statvfs(settings.DATA)
    free = disk.f_bavail * disk.f_frsize
    if connection.vendor != "sqlite":
        return Storage("PostgreSQL", None, free)
    try:
        size = Path(str(settings.DATABASES["default"]["NAME"])).stat().st_size
    except OSError:
        return Storage("SQLite", None, free)
    return Storage("SQLite", size, free)
