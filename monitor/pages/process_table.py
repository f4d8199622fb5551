"""The table of processes: who holds what, as one viewer may see it, filtered and sorted."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from monitor.models import ProcessUse
from monitor.pages import cards
from monitor.pages.badges import NONE, Badges
from monitor.pages.cards import ProcessRow
from monitor.policy.privacy import Viewer, owns, redact
from monitor.readings import ProcessReading, Snapshot

KINDS = {"C": "compute", "G": "graphics", "M": "MPS"}
BIGGEST_FIRST = "-memory"
EVER = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class ProcessLine:
    """A process on a GPU. `command` None: hidden from this viewer, or unknown."""

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


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the address asks for: a text, an owner, a GPU ("host:index"), an order."""

    text: str = ""
    owner: str = ""
    gpu: str = ""
    sort: str = BIGGEST_FIRST

    @classmethod
    def from_query(cls, query: Mapping[str, Any]) -> Wanted:
        sort = str(query.get("sort", ""))
        return cls(
            text=str(query.get("q", "")).strip(),
            owner=str(query.get("owner", "")),
            gpu=str(query.get("gpu", "")),
            sort=sort if sort.removeprefix("-") in SORTS else BIGGEST_FIRST,
        )


SORTS: dict[str, Callable[[ProcessLine], Any]] = {
    "gpu": lambda line: (line.host, line.gpu_index),
    "owner": lambda line: line.row.owner or "\uffff",
    "program": lambda line: line.row.program or "\uffff",
    "pid": lambda line: line.row.pid,
    "since": lambda line: line.created_at or EVER,
    "memory": lambda line: line.row.memory_bytes or -1,
    "share": lambda line: -1 if line.row.sm_pct is None else line.row.sm_pct,
}


def lines(
    snapshots: Iterable[Snapshot],
    viewer: Viewer,
    gpu_uuid: str | None = None,
    badges: Badges = NONE,
) -> list[ProcessLine]:
    """Every process on a GPU, or on one of them, with the commands that `viewer` may see."""
    return [
        _line(process, snapshot, indexes[process.gpu_uuid], viewer, badges)
        for snapshot in (redact(s, viewer) for s in snapshots)
        if (indexes := {gpu.uuid: gpu.index for gpu in snapshot.gpus})
        for process in snapshot.processes
        if process.gpu_uuid in indexes and gpu_uuid in (None, process.gpu_uuid)
    ]


def choose(found: Sequence[ProcessLine], wanted: Wanted) -> list[ProcessLine]:
    """Those that match, in the order that is asked for; equal ones by memory, then pid."""
    kept = [
        line
        for line in found
        if line.matches(wanted.text)
        and wanted.owner in ("", line.row.owner)
        and wanted.gpu in ("", gpu_name(line))
    ]
    kept.sort(key=lambda line: (-(line.row.memory_bytes or 0), line.row.pid))
    kept.sort(key=SORTS[wanted.sort.removeprefix("-")], reverse=wanted.sort.startswith("-"))
    return kept


def with_history(found: Sequence[ProcessLine]) -> list[ProcessLine]:
    """The lines with their rows of history, where this viewer may open it."""
    pids = {line.row.pid for line in found if not line.hidden}
    hosts = {line.host for line in found}
    rows = ProcessUse.objects.filter(host__in=hosts, pid__in=pids, ended_at=None)
    ids = {(row.host, row.pid, row.gpu_id): row for row in rows}

    def use_of(line: ProcessLine) -> int | None:
        row = ids.get((line.host, line.row.pid, line.gpu_uuid))
        # Of a process whose start is unknown the account keeps a number of its own.
        known = row is not None and line.start_ticks in (None, row.start_ticks)
        return row.pk if row is not None and known else None

    return [line if line.hidden else replace(line, use_id=use_of(line)) for line in found]


def gpu_name(line: ProcessLine) -> str:
    return f"{line.host}:{line.gpu_index}"


def _line(
    process: ProcessReading, snapshot: Snapshot, index: int, viewer: Viewer, badges: Badges
) -> ProcessLine:
    return ProcessLine(
        row=cards.process_row(process, badges),
        host=snapshot.host.name,
        gpu_uuid=process.gpu_uuid,
        gpu_index=index,
        created_at=process.created_at,
        command=shlex.join(process.command) if process.command else None,
        hidden=not (viewer.operator or owns(process, viewer)),
        kinds=", ".join(KINDS.get(kind, kind) for kind in process.kinds),
        start_ticks=process.start_ticks,
        container=process.container,
    )
