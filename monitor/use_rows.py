"""Uses of GPUs by processes as rows: written whole each time, so that twice is as good as once."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from operator import attrgetter

from django.db.models import F

from monitor import user_tallies
from monitor.models import ProcessMinute, ProcessUse
from monitor.policy.uses import Amounts, Minute, Use

_AMOUNTS = (
    "sm_s",
    "held_s",
    "known_s",
    "memory_byte_s",
    "memory_known_s",
    "peak_memory_bytes",
    "joules",
)
_MINUTE = tuple(name for name in _AMOUNTS if name != "memory_known_s")
_amounts_of, _minute_of = attrgetter(*_AMOUNTS), attrgetter(*_MINUTE)
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
)
_BATCH = 500


def write(
    host: str, uses: Sequence[Use], minutes: Sequence[Minute], *, simulated: bool = False
) -> None:
    """The uses, those minutes, and the minute that each use is in. The caller's transaction."""
    _adopt(host, [use for use in uses if not use.is_stored], minutes)
    user_tallies.count(host, uses, simulated=simulated)
    rows = ProcessUse.objects.bulk_create(
        [_row(host, use) for use in uses],
        update_conflicts=True,
        unique_fields=_KEY,
        update_fields=(*_FACTS, *_AMOUNTS),
        batch_size=_BATCH,
    )
    numbers = {id(use): row.pk for use, row in zip(uses, rows, strict=True)}
    current = [Minute(use, use.minute_t, use.minute) for use in uses if use.minute_t]
    ProcessMinute.objects.bulk_create(
        [
            ProcessMinute(
                use_id=numbers[id(m.use)],
                t=m.t,
                **dict(zip(_MINUTE, _minute_of(m.amounts), strict=True)),
            )
            for m in (*minutes, *current)
        ],
        update_conflicts=True,
        unique_fields=("use", "t"),
        update_fields=_MINUTE,
        batch_size=_BATCH,
    )
    for use in uses:
        use.is_stored = True


def close_all(host: str) -> int:
    """Nobody remembers which of the host's uses go on: each ended when it was last seen."""
    rows = ProcessUse.objects.filter(host=host, ended_at__isnull=True)
    return rows.update(ended_at=F("last_seen_at"))


def _adopt(host: str, new: Collection[Use], minutes: Iterable[Minute]) -> None:
    """A process that comes back to a GPU goes on where it stopped."""
    if not new:
        return
    by_key = {(use.gpu_uuid, use.pid, use.start_ticks): use for use in new}
    known: dict[int, Use] = {}
    for row in ProcessUse.objects.filter(host=host, pid__in={use.pid for use in new}):
        use = by_key.get((row.gpu_id, row.pid, row.start_ticks))
        if use is not None:
            use.total.add(Amounts(**dict(zip(_AMOUNTS, _amounts_of(row), strict=True))))
            use.first_seen_at = row.first_seen_at
            use.is_stored = True
            known[row.pk] = use
    pending = {(id(m.use), m.t): m.amounts for m in minutes}
    pending |= {(id(use), use.minute_t): use.minute for use in known.values()}
    times = {t for _, t in pending}
    for minute in ProcessMinute.objects.filter(use_id__in=known, t__in=times) if known else ():
        amounts = pending.get((id(known[minute.use_id]), minute.t))
        if amounts is not None:
            amounts.add(Amounts(**dict(zip(_MINUTE, _minute_of(minute), strict=True))))


def _row(host: str, use: Use) -> ProcessUse:
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
        **_values(use.total),
    )


def _values(amounts: Amounts) -> dict[str, float | None]:
    return dict(zip(_AMOUNTS, _amounts_of(amounts), strict=True))
