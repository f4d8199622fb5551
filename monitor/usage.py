"""Rows: how much of the GPUs people and processes used, added up by whatever a page asks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from django.db.models import Max, Model, Q, QuerySet, Sum

from monitor.models import Gpu, HostHour, HostMinute, ProcessHour, ProcessMinute, ProcessUse
from monitor.policy.windows import Source, Window
from monitor.rollups import MINUTE_S, plain, start_of

_SUMS = ("sm_s", "held_s", "known_s", "memory_byte_s", "joules")
_PEAK = "peak_memory_bytes"
# A process is seen every few seconds; its row tells so a little later.
_SLACK_S = 2 * MINUTE_S
# Of a step that has just begun too little is written down yet.
_FRESH_S = 15


@dataclass(frozen=True, slots=True)
class Usage:
    """What was used: GPU-seconds, and of how many of the seconds held that is known."""

    sm_s: float = 0.0
    held_s: float = 0.0
    known_s: float = 0.0
    memory_byte_s: float = 0.0
    joules: float | None = None
    peak_memory_bytes: int | None = None

    @property
    def coverage_pct(self) -> float | None:
        return min(100.0, 100 * self.known_s / self.held_s) if self.held_s else None

    @property
    def used_s(self) -> float | None:
        """None when nothing of the time held was measured."""
        return self.sm_s if self.known_s or not self.held_s else None

    @property
    def share_pct(self) -> float | None:
        return 100 * self.sm_s / self.known_s if self.known_s else None

    @property
    def mean_memory_bytes(self) -> float | None:
        """While it was held; None when no memory was ever told."""
        known = self.held_s and (self.memory_byte_s or self.peak_memory_bytes is not None)
        return self.memory_byte_s / self.held_s if known else None


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of a table of usage: of an owner, a GPU or a process."""

    subject: Any
    usage: Usage


def by_owner(gpu_uuid: str, window: Window) -> list[Entry]:
    """Who used a GPU, most first. The owner of a job's process is whose job it is."""
    parts = _parts(window, ProcessUse.objects.filter(gpu_id=gpu_uuid))
    rows = _grouped(parts, "use__user", "use__job_owner")
    return _entries((row["use__job_owner"] or row["use__user"] or None, row) for row in rows)


def by_gpu(owner: str, window: Window) -> list[Entry]:
    """Which GPUs a person used, most first."""
    rows = list(_grouped(_parts(window, uses_of(owner)), "use__gpu_id"))
    gpus = Gpu.objects.in_bulk([row["use__gpu_id"] for row in rows])
    return _entries((gpus[row["use__gpu_id"]], row) for row in rows)


def by_process(owner: str, window: Window, most: int) -> list[Entry]:
    """A person's processes that used or held a GPU, most first."""
    rows = list(_grouped(_parts(window, uses_of(owner)), "use_id"))
    rows.sort(key=lambda row: (row["sm_s_"] or 0, row["memory_byte_s_"] or 0), reverse=True)
    found = ProcessUse.objects.select_related("gpu").in_bulk([r["use_id"] for r in rows[:most]])
    return _entries((found[row["use_id"]], row) for row in rows[:most])


def total(entries: Iterable[Entry]) -> Usage:
    return add(entry.usage for entry in entries)


def add(usages: Iterable[Usage]) -> Usage:
    found = list(usages)
    joules = [u.joules for u in found if u.joules is not None]
    peaks = [u.peak_memory_bytes for u in found if u.peak_memory_bytes is not None]
    return Usage(
        sm_s=sum(u.sm_s for u in found),
        held_s=sum(u.held_s for u in found),
        known_s=sum(u.known_s for u in found),
        memory_byte_s=sum(u.memory_byte_s for u in found),
        joules=sum(joules) if joules else None,
        peak_memory_bytes=max(peaks, default=None),
    )


def uses_of(owner: str) -> QuerySet[ProcessUse]:
    """A person's: their jobs', and their own processes that belong to nobody else's job."""
    return ProcessUse.objects.filter(Q(job_owner=owner) | Q(user=owner, job_owner=""))


def points(uses: QuerySet[ProcessUse], window: Window, host: str | None = None) -> list[Any]:
    """Sums of these uses in each step that was watched; a step in which they did nothing is 0.

    `seen_s`: for how many seconds of the step there were readings of the host (or of any).
    """
    seen = _watched(window, host)
    parts = _parts(window, uses).annotate(start=start_of(window.step))
    found = {row["start"]: plain(dict(row)) for row in _grouped(parts, "start")}
    nothing: dict[str, Any] = {**dict.fromkeys(_SUMS[:-1], 0.0), "joules": None, _PEAK: None}
    rows = []
    written = _written_until(uses, window) if window.live else None
    for t in sorted(seen.keys() | found.keys()):
        # What a window of the past ends in counts as a whole, as its minutes do.
        elapsed = min(window.step, window.until - t) if window.live else window.step
        if written is not None and t in found and t + window.step > window.until:
            elapsed = min(elapsed, int(written) - t)
        if elapsed < _FRESH_S:
            continue
        # The step that goes on is watched further than its minutes tell.
        over = not window.live or t + window.step + _SLACK_S <= window.until
        watched = seen[t] if over and t in seen else elapsed
        rows.append({**nothing, **found.get(t, {}), "t": t, "seen_s": watched})
    return [row for row in rows if row["seen_s"] > 0]


def _written_until(uses: QuerySet[ProcessUse], window: Window) -> float | None:
    """Up to when the rows tell of them; they are a few seconds behind."""
    last = _alive(uses, window.since, window.until).aggregate(at=Max("last_seen_at"))["at"]
    return last.timestamp() if last else None


def hours(gpu_uuids: Sequence[str], since: int, until: int) -> dict[tuple[str, int], list[Entry]]:
    """Who used these GPUs in each hour, most first."""
    parts = ProcessHour.objects.filter(
        use__in=_alive(ProcessUse.objects.filter(gpu_id__in=gpu_uuids), since, until),
        t__gte=since,
        t__lt=until,
    )
    cells: dict[tuple[str, int], list[tuple[str | None, Mapping[str, Any]]]] = {}
    for row in _grouped(parts, "use__gpu_id", "t", "use__user", "use__job_owner"):
        owner = row["use__job_owner"] or row["use__user"] or None
        cells.setdefault((row["use__gpu_id"], row["t"]), []).append((owner, row))
    return {key: _entries(rows) for key, rows in cells.items()}


def _parts(window: Window, uses: QuerySet[ProcessUse]) -> QuerySet[Any]:
    """Minutes or hours of these uses in the window."""
    model: type[Model] = ProcessHour if window.source is Source.HOUR else ProcessMinute
    wanted = _alive(uses, window.since, window.until).values("pk")
    return model._default_manager.filter(
        use_id__in=wanted, t__gte=window.since, t__lt=window.until
    ).order_by()


def _alive(uses: QuerySet[ProcessUse], since: int, until: int) -> QuerySet[ProcessUse]:
    return uses.filter(
        last_seen_at__gte=datetime.fromtimestamp(since - _SLACK_S, UTC),
        first_seen_at__lt=datetime.fromtimestamp(until, UTC),
    )


def _grouped(parts: QuerySet[Any], *names: str) -> Iterable[Mapping[str, Any]]:
    columns: dict[str, Any] = {f"{name}_": Sum(name) for name in _SUMS}
    columns[f"{_PEAK}_"] = Max(_PEAK)
    rows: Iterable[Mapping[str, Any]] = parts.order_by().values(*names).annotate(**columns)
    return rows


def _entries(rows: Iterable[tuple[Any, Mapping[str, Any]]]) -> list[Entry]:
    """One entry for each subject, whoever used most first."""
    usages: dict[Any, list[Usage]] = {}
    for subject, row in rows:
        usages.setdefault(subject, []).append(_usage(row))
    found = [Entry(subject, add(parts)) for subject, parts in usages.items()]
    return sorted(found, key=lambda e: (-e.usage.sm_s, -e.usage.memory_byte_s))


def _usage(row: Mapping[str, Any]) -> Usage:
    return Usage(
        sm_s=row["sm_s_"] or 0.0,
        held_s=row["held_s_"] or 0.0,
        known_s=row["known_s_"] or 0.0,
        memory_byte_s=row["memory_byte_s_"] or 0.0,
        joules=row["joules_"],
        peak_memory_bytes=row[f"{_PEAK}_"],
    )


def _watched(window: Window, host: str | None) -> dict[int, int]:
    """{begin of a step: seconds with readings}; of several hosts, that of the one with most."""
    model: type[Model] = HostHour if window.source is Source.HOUR else HostMinute
    rows = model._default_manager.filter(t__gte=window.since, t__lt=window.until)
    rows = rows.filter(host=host) if host else rows
    grouped: QuerySet[Any] = rows.annotate(start=start_of(window.step)).order_by()
    found: dict[int, int] = {}
    for row in grouped.values("host", "start").annotate(seen=Sum("seen_s")):
        found[row["start"]] = max(found.get(row["start"], 0), row["seen"])
    return found
