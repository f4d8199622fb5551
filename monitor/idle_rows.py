"""Rows: since when a process has used nothing of its GPU, by the minutes that are kept."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from monitor.models import ProcessMinute, ProcessUse

# How far back it is told.
LOOK_BACK = timedelta(hours=24)


def idle_since(
    uses: Iterable[ProcessUse], now: datetime, *, below_pct: float, coverage: float
) -> dict[int, datetime]:
    """By the use's number; who has used more, or of whom less is known, is not there.

    coverage: the part (0..1) of each minute that has to be known.
    """
    rows = {use.pk: use for use in uses}
    begin_t = int((now - LOOK_BACK).timestamp())
    minutes = ProcessMinute.objects.filter(use_id__in=rows, t__gte=begin_t).order_by("use", "-t")
    found: dict[int, datetime] = {}
    over: set[int] = set()
    for minute in minutes:
        if minute.use_id in over:
            continue
        if not _is_idle(minute, below_pct, coverage):
            over.add(minute.use_id)
            continue
        first_t = rows[minute.use_id].first_seen_at.timestamp()
        found[minute.use_id] = datetime.fromtimestamp(max(minute.t, first_t), UTC)
    return found


def _is_idle(minute: ProcessMinute, below_pct: float, coverage: float) -> bool:
    if not minute.known_s or minute.known_s < coverage * minute.held_s:
        return False
    return 100 * minute.sm_s / minute.known_s < below_pct
