"""Rows of GPU usage by processes and users. Rows are written whole, so writes are idempotent."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from typing import NamedTuple

from django.db.models import F, Sum

from monitor.journal.rows import counters
from monitor.models import ProcessMinute, ProcessUse
from monitor.runtime.rows.prepared import upsert_rows
from monitor.usage.policy.accounting import MinuteSums, ProcessRecord, UsageAmounts

_AMOUNTS = tuple(field.name for field in fields(UsageAmounts))
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
