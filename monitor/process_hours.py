"""Rows: the minutes of processes are added up to hours. Doing it again changes nothing."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from django.db.models import Max, Min, QuerySet, Sum

from monitor.models import ProcessHour, ProcessMinute
from monitor.rollups import HOUR_S, MINUTE_S, floor, plain, start_of, write

# The hour before may still get its last minute.
LATE_S = 60


def roll_up(now: datetime) -> int:
    """Hours of all processes, from the newest on; the hour before may still get late minutes."""
    now_t = int(now.timestamp())
    last: int | None = ProcessHour.objects.aggregate(t=Max("t"))["t"]
    if last is None:
        last = ProcessMinute.objects.aggregate(t=Min("t"))["t"]
    if last is None:
        return 0
    written = 0
    for begin in range(floor(min(last, now_t - LATE_S), HOUR_S), now_t, 6 * HOUR_S):
        rows = _process_sums(begin, min(begin + 6 * HOUR_S, floor(now_t, HOUR_S) + HOUR_S))
        written += write(ProcessHour, ("use_id", "t"), rows)
    return written


def _process_sums(since: int, until: int) -> Iterable[dict[str, Any]]:
    """Through the uses, because minutes have no index on the time alone."""
    minutes = ProcessMinute.objects.filter(
        use__last_seen_at__gte=datetime.fromtimestamp(since - MINUTE_S, UTC),
        use__first_seen_at__lt=datetime.fromtimestamp(until, UTC),
        t__gte=since,
        t__lt=until,
    )
    grouped: QuerySet[Any, Any] = minutes.annotate(start=start_of(HOUR_S)).order_by()
    sums = ("sm_s", "held_s", "known_s", "memory_byte_s", "joules")
    columns: dict[str, Any] = {f"{name}_": Sum(name) for name in sums}
    columns["peak_memory_bytes_"] = Max("peak_memory_bytes")
    return [plain(row) for row in grouped.values("use_id", "start").annotate(**columns)]
