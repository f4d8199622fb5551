"""Statistics of a slice's ticks: lateness, and the faults that were already logged."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from gpucoord_site.service.logs import masked
from monitor.models import Lease
from monitor.runtime.rows.item_isolation import place_of

KEPT = 300


class TickStats:
    """Starts from the lease's row, so that a new slice does not log a known fault again."""

    def __init__(self, row: Lease) -> None:
        self.last_tick_at = row.last_tick_at
        self.failing_since_at = row.failing_since_at
        self._key = row.last_error_key if row.failing_since_at else ""
        self._logged = {self._key}
        self._ticks = row.ticks
        self._late_ms: deque[float] = deque(maxlen=KEPT)

    def begin(self, now: datetime, lateness_s: float | None) -> None:
        self.last_tick_at = now
        self._ticks += 1
        if lateness_s is not None:
            self._late_ms.append(max(0.0, lateness_s * 1000))

    def fields(self) -> dict[str, Any]:
        """The columns of a tick that did something, stored when the lease is renewed."""
        fields: dict[str, Any] = {"last_tick_at": self.last_tick_at, "ticks": self._ticks}
        if self._late_ms:
            fields["lateness_p50_ms"] = quantile(self._late_ms, 0.50)
            fields["lateness_p99_ms"] = quantile(self._late_ms, 0.99)
        return fields

    def worked(self) -> bool:
        """Record a tick without a fault; True if it is the first one after a fault."""
        recovered, self.failing_since_at, self._key = self.failing_since_at is not None, None, ""
        return recovered

    def failed(self, error: Exception, now: datetime) -> tuple[dict[str, Any], bool]:
        """The columns that describe `error`, and whether the fault is new and must be logged."""
        self.failing_since_at = self.failing_since_at or now
        self._key = place_of(error)
        is_news = self._key not in self._logged
        self._logged.add(self._key)
        return {
            "failing_since_at": self.failing_since_at,
            "last_error": one_line(error),
            "last_error_key": self._key,
            "last_error_at": now,
        }, is_news


def one_line(error: Exception) -> str:
    """The fault in one line without secrets, because /healthz is public."""
    text = masked(" ".join(str(error).split()))
    return f"{type(error).__name__}: {text}"[:300] if text else type(error).__name__


def quantile(values: Sequence[float] | deque[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
