"""Usage of GPUs by users and processes, summed by owner, GPU, process or time step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from typing import Any, NamedTuple

from django.db.models import F, Max, Model, Q, QuerySet, Sum
from django.db.models.functions import Coalesce
from msgspec import Struct

from monitor.journal.rows import counters
from monitor.models import Gpu, HostHour, HostMinute, ProcessHour, ProcessMinute, ProcessUse
from monitor.runtime.rows.database import upsert_rows
from monitor.usage.policy.accounting import MinuteSums, ProcessRecord, UsageAmounts
from monitor.usage.policy.ranges import HistoryWindow, Source
from monitor.usage.rows.rollups import MINUTE_S, plain, start_of

# Rows of GPU usage by processes and users. Rows are written whole, so writes are idempotent.


_AMOUNTS = UsageAmounts.__struct_fields__
_amounts_of = attrgetter(*_AMOUNTS)
_KEY = ("host", "pid", "start_ticks", "gpu")
_FACTS = (
    "user",
    "uid",
    "program",
    "container",
    "job_ref",
    "job_owner",
    "created_at",
    "first_seen_at",
    "last_seen_at",
    "ended_at",
    "source",
    "owner_source",
)


def write(
    host: str,
    uses: Sequence[ProcessRecord],
    minutes: Sequence[MinuteSums],
    *,
    simulated: bool = False,
) -> None:
    """Store the uses, these minutes, and the current minute of each use.

    The caller opens the transaction.
    """
    _adopt(host, [use for use in uses if not use.is_stored], minutes)
    stored = _stored(host, uses)
    _count_usage(host, uses, stored, simulated=simulated)
    upsert_rows([_row(host, use) for use in uses], _KEY, (*_FACTS, *_AMOUNTS))
    if any(_key(use) not in stored for use in uses):
        stored = _stored(host, uses)
    current = [MinuteSums(use, use.minute_t, use.minute) for use in uses if use.minute_t]
    upsert_rows(
        [
            ProcessMinute(use_id=stored[_key(m.use)].number, t=m.t, **_values(m.amounts))
            for m in (*minutes, *current)
        ],
        ("use", "t"),
        _AMOUNTS,
    )
    for use in uses:
        use.is_stored = True


def close_all(host: str) -> int:
    """End all open rows of the host at their last sighting, after the accounting state was lost."""
    rows = ProcessUse.objects.filter(host=host, ended_at__isnull=True)
    return rows.update(ended_at=F("last_seen_at"))


def _adopt(host: str, new: Collection[ProcessRecord], minutes: Iterable[MinuteSums]) -> None:
    """Continue the row of a process that comes back to a GPU."""
    if not new:
        return
    by_key = {(use.gpu_uuid, use.pid, use.start_ticks): use for use in new}
    adopted: dict[int, ProcessRecord] = {}
    for row in ProcessUse.objects.filter(host=host, pid__in={use.pid for use in new}):
        use = by_key.get((row.gpu_id, row.pid, row.start_ticks))
        if use is not None:
            use.total.add(_amounts(row))
            use.first_seen_at = row.first_seen_at
            use.is_stored = True
            adopted[row.pk] = use
    pending = {(id(m.use), m.t): m.amounts for m in minutes}
    pending |= {(id(use), use.minute_t): use.minute for use in adopted.values()}
    times = {t for _, t in pending}
    for minute in ProcessMinute.objects.filter(use_id__in=adopted, t__in=times) if adopted else ():
        amounts = pending.get((id(adopted[minute.use_id]), minute.t))
        if amounts is not None:
            amounts.add(_amounts(minute))


def _row(host: str, use: ProcessRecord) -> ProcessUse:
    return ProcessUse(
        host=host,
        pid=use.pid,
        start_ticks=use.start_ticks,
        gpu_id=use.gpu_uuid,
        user=use.user or "",
        uid=use.uid,
        program=(use.program or "")[:200],
        container=use.container or "",
        job_ref=use.job_ref or "",
        job_owner=use.job_owner or "",
        created_at=use.created_at,
        first_seen_at=use.first_seen_at,
        last_seen_at=use.last_seen_at,
        ended_at=use.ended_at,
        source=use.source.value,
        owner_source=use.owner_source.value,
        **_values(use.total),
    )


def _amounts(row: ProcessUse | ProcessMinute) -> UsageAmounts:
    values = dict(zip(_AMOUNTS, _amounts_of(row), strict=True))
    if values["memory_known_s"] is None:
        values["memory_known_s"] = values["held_s"]
    return UsageAmounts(**values)


def _values(amounts: UsageAmounts) -> dict[str, float | None]:
    return dict(zip(_AMOUNTS, _amounts_of(amounts), strict=True))


QUANTITIES = ("sm_s", "held_s", "known_s", "joules")
_quantities_of = attrgetter(*QUANTITIES)
# Stands for processes with an unknown owner.
UNKNOWN_USER = "(unknown)"
_SIMULATED = "simulated "


class _Stored(NamedTuple):
    """Of a row: its number, and its QUANTITIES."""

    number: int
    amounts: tuple[float | None, ...]


_NEW = _Stored(0, (None,) * len(QUANTITIES))


def _key(use: ProcessRecord) -> tuple[str, int, int]:
    return use.gpu_uuid, use.pid, use.start_ticks


def _count_usage(
    host: str,
    uses: Sequence[ProcessRecord],
    stored: Mapping[tuple[str, int, int], _Stored],
    *,
    simulated: bool,
) -> None:
    """Add to the counters by how much the uses exceed their rows, which are not updated yet."""
    grown: dict[tuple[str, str], float] = defaultdict(float)
    names = [_SIMULATED * simulated + quantity for quantity in QUANTITIES]
    for use in uses:
        person = use.job_owner or use.user or UNKNOWN_USER
        before = stored.get(_key(use), _NEW).amounts
        for name, now, earlier in zip(names, _quantities_of(use.total), before, strict=True):
            if now is not None:
                grown[name, person] += max(0.0, now - (earlier or 0.0))
    counters.add_all(host, grown)


def counter_totals() -> dict[str, list[tuple[str, str, bool, float]]]:
    """{quantity: (host, person, simulated, how much)}."""
    totals: dict[str, list[tuple[str, str, bool, float]]] = {name: [] for name in QUANTITIES}
    for row in counters.of(*QUANTITIES, *(_SIMULATED + name for name in QUANTITIES)):
        quantity = row.name.removeprefix(_SIMULATED)
        totals[quantity].append((row.host, row.subject, quantity != row.name, row.value))
    return totals


def _stored(host: str, uses: Sequence[ProcessRecord]) -> dict[tuple[str, int, int], _Stored]:
    rows = ProcessUse.objects.filter(host=host, pid__in={use.pid for use in uses})
    columns = ("gpu_id", "pid", "start_ticks", "pk", *QUANTITIES)
    return {
        (gpu, pid, ticks): _Stored(number, tuple(amounts))
        for gpu, pid, ticks, number, *amounts in rows.values_list(*columns)
    }


# How far back the idle time is searched.
LOOK_BACK = timedelta(hours=24)


def idle_since(
    uses: Iterable[ProcessUse], now: datetime, *, below_pct: float, coverage: float
) -> dict[int, datetime]:
    """{row id: start of the idle time}; busy or insufficiently measured processes are omitted.

    coverage: the part (0..1) of each minute that has to be known.
    """
    rows = {use.pk: use for use in uses}
    begin_t = int((now - LOOK_BACK).timestamp())
    minutes = ProcessMinute.objects.filter(use_id__in=rows, t__gte=begin_t).order_by("use", "-t")
    idle_from: dict[int, datetime] = {}
    finished: set[int] = set()
    for minute in minutes:
        if minute.use_id in finished:
            continue
        if not _is_idle(minute, below_pct, coverage):
            finished.add(minute.use_id)
            continue
        first_t = rows[minute.use_id].first_seen_at.timestamp()
        idle_from[minute.use_id] = datetime.fromtimestamp(max(minute.t, first_t), UTC)
    return idle_from


def mean_pct(use_id: int, since: datetime) -> float | None:
    """The mean use (%) in the minutes from `since` on, as far as it was measured."""
    minutes = ProcessMinute.objects.filter(use_id=use_id, t__gte=int(since.timestamp()) // 60 * 60)
    sums = minutes.aggregate(sm_s=Sum("sm_s"), known_s=Sum("known_s"))
    return 100 * sums["sm_s"] / sums["known_s"] if sums["known_s"] else None


def _is_idle(minute: ProcessMinute, below_pct: float, coverage: float) -> bool:
    if not minute.known_s or minute.known_s < coverage * minute.held_s:
        return False
    return 100 * minute.sm_s / minute.known_s < below_pct


SUMS = ("sm_s", "held_s", "known_s", "memory_byte_s", "joules")
_MEMORY_KNOWN = "memory_known_s"
_PEAK = "peak_memory_bytes"
# Processes are read every few seconds, and their rows are written a little later.
_SLACK_S = 2 * MINUTE_S
# Too little of a step that has just begun is stored.
_FRESH_S = 15


class UsageTotals(Struct, frozen=True):
    """GPU-seconds used, and how many of the held seconds were measured."""

    sm_s: float = 0.0
    held_s: float = 0.0
    known_s: float = 0.0
    memory_byte_s: float = 0.0
    memory_known_s: float = 0.0
    joules: float | None = None
    peak_memory_bytes: int | None = None

    @property
    def coverage_pct(self) -> float | None:
        return min(100.0, 100 * self.known_s / self.held_s) if self.held_s else None

    @property
    def used_s(self) -> float | None:
        """None if none of the held time was measured."""
        return self.sm_s if self.known_s or not self.held_s else None

    @property
    def share_pct(self) -> float | None:
        return 100 * self.sm_s / self.known_s if self.known_s else None

    @property
    def mean_memory_bytes(self) -> float | None:
        """The mean while it was measured; None: never."""
        return self.memory_byte_s / self.memory_known_s if self.memory_known_s else None


class UsageRow(Struct, frozen=True):
    """One row of a usage table: an owner, a GPU or a process."""

    subject: Any
    usage: UsageTotals


def by_owner(gpu_uuid: str, window: HistoryWindow) -> list[UsageRow]:
    """Users of a GPU, heaviest first. Processes of a job count for the owner of the job."""
    parts = _parts(window, ProcessUse.objects.filter(gpu_id=gpu_uuid))
    rows = _grouped(parts, "use__user", "use__job_owner")
    return _entries((row["use__job_owner"] or row["use__user"] or None, row) for row in rows)


def steps_by_owner(
    gpu_uuid: str, window: HistoryWindow
) -> dict[str | None, dict[int, UsageTotals]]:
    """The usage of a GPU by each owner in each step of the window, by the begin of the step."""
    parts = _parts(window, ProcessUse.objects.filter(gpu_id=gpu_uuid))
    in_steps = parts.annotate(start=start_of(window.step))
    steps_of: dict[str | None, dict[int, list[UsageTotals]]] = {}
    for row in _grouped(in_steps, "start", "use__user", "use__job_owner"):
        owner = row["use__job_owner"] or row["use__user"] or None
        steps_of.setdefault(owner, {}).setdefault(row["start"], []).append(_usage(row))
    return {owner: {t: add(of) for t, of in by_t.items()} for owner, by_t in steps_of.items()}


def by_gpu(owner: str, window: HistoryWindow) -> list[UsageRow]:
    """GPUs that a user used, most used first."""
    rows = list(_grouped(_parts(window, uses_of(owner)), "use__gpu_id"))
    gpus = Gpu.objects.in_bulk([row["use__gpu_id"] for row in rows])
    return _entries((gpus[row["use__gpu_id"]], row) for row in rows)


def by_process(owner: str, window: HistoryWindow, most: int) -> list[UsageRow]:
    """The user's processes that used or held a GPU, heaviest first."""
    rows = list(_grouped(_parts(window, uses_of(owner)), "use_id"))
    rows.sort(key=lambda row: (row["sm_s_"] or 0, row["memory_byte_s_"] or 0), reverse=True)
    uses = ProcessUse.objects.select_related("gpu").in_bulk([r["use_id"] for r in rows[:most]])
    return _entries((uses[row["use_id"]], row) for row in rows[:most])


def total(entries: Iterable[UsageRow]) -> UsageTotals:
    return add(entry.usage for entry in entries)


def add(usages: Iterable[UsageTotals]) -> UsageTotals:
    totals = list(usages)
    joules = [u.joules for u in totals if u.joules is not None]
    peaks = [u.peak_memory_bytes for u in totals if u.peak_memory_bytes is not None]
    return UsageTotals(
        sm_s=sum(u.sm_s for u in totals),
        held_s=sum(u.held_s for u in totals),
        known_s=sum(u.known_s for u in totals),
        memory_byte_s=sum(u.memory_byte_s for u in totals),
        memory_known_s=sum(u.memory_known_s for u in totals),
        joules=sum(joules) if joules else None,
        peak_memory_bytes=max(peaks, default=None),
    )


def uses_of(owner: str) -> QuerySet[ProcessUse]:
    """Processes of the user's jobs, and the user's own processes outside other users' jobs."""
    return ProcessUse.objects.filter(Q(job_owner=owner) | Q(user=owner, job_owner=""))


def points(uses: QuerySet[ProcessUse], window: HistoryWindow, host: str | None = None) -> list[Any]:
    """Sums of these uses in each watched step; 0 in a step without use.

    `seen_s`: seconds of the step with readings of the host (or of any host).
    """
    watched_s = _watched(window, host)
    parts = _parts(window, uses).annotate(start=start_of(window.step))
    sums_by_step = {row["start"]: plain(dict(row)) for row in _grouped(parts, "start")}
    nothing: dict[str, Any] = dict.fromkeys((*SUMS, _MEMORY_KNOWN), 0.0)
    nothing |= {"joules": None, _PEAK: None}
    rows = []
    written = _written_until(uses, window) if window.live else None
    for t in sorted(watched_s.keys() | sums_by_step.keys()):
        # The last step of a past window counts as a whole, as its minutes do.
        elapsed = min(window.step, window.until - t) if window.live else window.step
        if written is not None and t in sums_by_step and t + window.step > window.until:
            elapsed = min(elapsed, int(written) - t)
        if elapsed < _FRESH_S:
            continue
        # The current step is watched for longer than its minutes show.
        over = not window.live or t + window.step + _SLACK_S <= window.until
        watched = watched_s[t] if over and t in watched_s else elapsed
        rows.append({**nothing, **sums_by_step.get(t, {}), "t": t, "seen_s": watched})
    return [row for row in rows if row["seen_s"] > 0]


def _written_until(uses: QuerySet[ProcessUse], window: HistoryWindow) -> float | None:
    """Time up to which rows are complete; they are written a few seconds late."""
    last = _alive(uses, window.since, window.until).aggregate(at=Max("last_seen_at"))["at"]
    return last.timestamp() if last else None


def hours(
    gpu_uuids: Sequence[str], since: int, until: int
) -> dict[tuple[str, int], list[UsageRow]]:
    """Users of these GPUs in each hour, heaviest first."""
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


def _parts(window: HistoryWindow, uses: QuerySet[ProcessUse]) -> QuerySet[Any]:
    """Minutes or hours of these uses in the window."""
    model: type[Model] = ProcessHour if window.source is Source.HOUR else ProcessMinute
    use_ids = _alive(uses, window.since, window.until).values("pk")
    return model._default_manager.filter(
        use_id__in=use_ids, t__gte=window.since, t__lt=window.until
    ).order_by()


def _alive(uses: QuerySet[ProcessUse], since: int, until: int) -> QuerySet[ProcessUse]:
    return uses.filter(
        last_seen_at__gte=datetime.fromtimestamp(since - _SLACK_S, UTC),
        first_seen_at__lt=datetime.fromtimestamp(until, UTC),
    )


def _grouped(parts: QuerySet[Any], *names: str) -> Iterable[Mapping[str, Any]]:
    columns: dict[str, Any] = {f"{name}_": Sum(name) for name in SUMS}
    columns[f"{_MEMORY_KNOWN}_"] = Sum(Coalesce(_MEMORY_KNOWN, "held_s"))
    columns[f"{_PEAK}_"] = Max(_PEAK)
    rows: Iterable[Mapping[str, Any]] = parts.order_by().values(*names).annotate(**columns)
    return rows


def _entries(rows: Iterable[tuple[Any, Mapping[str, Any]]]) -> list[UsageRow]:
    """One entry per subject, heaviest first."""
    usages: dict[Any, list[UsageTotals]] = {}
    for subject, row in rows:
        usages.setdefault(subject, []).append(_usage(row))
    entries = [UsageRow(subject, add(parts)) for subject, parts in usages.items()]
    return sorted(entries, key=lambda e: (-e.usage.sm_s, -e.usage.memory_byte_s))


def _usage(row: Mapping[str, Any]) -> UsageTotals:
    return UsageTotals(
        sm_s=row["sm_s_"] or 0.0,
        held_s=row["held_s_"] or 0.0,
        known_s=row["known_s_"] or 0.0,
        memory_byte_s=row["memory_byte_s_"] or 0.0,
        memory_known_s=row[f"{_MEMORY_KNOWN}_"] or 0.0,
        joules=row["joules_"],
        peak_memory_bytes=row[f"{_PEAK}_"],
    )


def _watched(window: HistoryWindow, host: str | None) -> dict[int, int]:
    """{begin of a step: seconds with readings}; with several hosts, the maximum of the hosts."""
    model: type[Model] = HostHour if window.source is Source.HOUR else HostMinute
    rows = model._default_manager.filter(t__gte=window.since, t__lt=window.until)
    rows = rows.filter(host=host) if host else rows
    grouped: QuerySet[Any] = rows.annotate(start=start_of(window.step)).order_by()
    seen_by_step: dict[int, int] = {}
    for row in grouped.values("host", "start").annotate(watched_s=Sum("seen_s")):
        seen_by_step[row["start"]] = max(seen_by_step.get(row["start"], 0), row["watched_s"])
    return seen_by_step
