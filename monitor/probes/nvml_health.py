"""What NVML counts of a GPU's faults: clock-event reasons, ECC, retired pages, remapped rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from monitor.health import HealthReading
from monitor.probes import nvml_faults as faults
from monitor.probes.nvml_faults import Refused

EVERY_S = 5.0
_CORRECTED, _UNCORRECTED, _VOLATILE = 0, 1, 0
_PAGE_CAUSES = (0, 1)
_REASONS = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")


class HealthTier:
    """Reads each GPU every few seconds and repeats what it read in between.

    `must(name, *args)` calls NVML or raises Refused. What a GPU does not support is not asked
    again by this process.
    """

    def __init__(self, must: Callable[..., Any], every_s: float = EVERY_S) -> None:
        self._must = must
        self._every_s = every_s
        self._absent: set[tuple[str, str]] = set()
        self._last: dict[str, tuple[float, HealthReading]] = {}

    def of(self, handle: Any, uuid: str, t: float) -> HealthReading:
        """The newest reading of a GPU at `t` seconds; Refused when the GPU or library is gone."""
        read_t, known = self._last.get(uuid, (float("-inf"), None))
        if known is None or not 0 <= t - read_t < self._every_s:
            known = self._read(handle, uuid)
            self._last[uuid] = (t, known)
        return known

    def _read(self, handle: Any, uuid: str) -> HealthReading:
        def ask(name: str, *args: Any) -> Any:
            return self._ask(uuid, name, handle, *args)

        reasons = next((r for name in _REASONS if (r := ask(name)) is not None), None)
        rows = ask("nvmlDeviceGetRemappedRows")
        pages = self._pages(ask) if rows is None else None
        pending = ask("nvmlDeviceGetRetiredPagesPendingStatus") if pages is not None else None
        return HealthReading(
            gpu_uuid=uuid,
            clock_reasons=reasons,
            ecc_corrected=ask("nvmlDeviceGetTotalEccErrors", _CORRECTED, _VOLATILE),
            ecc_uncorrected=ask("nvmlDeviceGetTotalEccErrors", _UNCORRECTED, _VOLATILE),
            retired_pages=pages,
            retired_pending=None if pending is None else bool(pending),
            remapped_corrected=rows[0] if rows else None,
            remapped_uncorrected=rows[1] if rows else None,
            remap_pending=bool(rows[2]) if rows else None,
            remap_failed=bool(rows[3]) if rows else None,
        )

    def _pages(self, ask: Callable[..., Any]) -> int | None:
        """Memory pages taken out of use: what GPUs before Ampere have instead of rows."""
        lists = [ask("nvmlDeviceGetRetiredPages", cause) for cause in _PAGE_CAUSES]
        return None if None in lists else sum(map(len, lists))

    def _ask(self, uuid: str, name: str, *args: Any) -> Any:
        if (uuid, name) in self._absent:
            return None
        try:
            return self._must(name, *args)
        except Refused as refused:
            if refused.is_fatal:
                raise
            if refused.code in faults.NO_ANSWER:
                self._absent.add((uuid, name))
            return None
