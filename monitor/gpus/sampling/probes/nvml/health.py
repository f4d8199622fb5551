"""NVML's counters of a GPU's faults: clock-event reasons, ECC, retired pages, remapped rows."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from queue import Empty, SimpleQueue
from typing import Any

from monitor.facts.gpu_states import HealthReading, Xid
from monitor.gpus.sampling.probes.nvml import calls
from monitor.gpus.sampling.probes.nvml.calls import CallRefused

EVERY_S = 5.0
_CORRECTED, _UNCORRECTED, _VOLATILE = 0, 1, 0
_PAGE_CAUSES = (0, 1)
_REASONS = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")


class HealthTier:
    """Reads each GPU every few seconds and repeats what it read in between.

    `must(name, *args)` calls NVML or raises CallRefused. Calls that a GPU does not
    support are not made again.
    """

    def __init__(self, must: Callable[..., Any], every_s: float = EVERY_S) -> None:
        self._must = must
        self._every_s = every_s
        self._is_refused = False
        self._absent: set[tuple[Any, ...]] = set()
        self._last: dict[str, tuple[float, HealthReading]] = {}

    def of(self, handle: Any, uuid: str, t: float) -> HealthReading:
        """The newest reading of a GPU at `t` seconds; raises CallRefused if it is gone."""
        read_t, reading = self._last.get(uuid, (float("-inf"), None))
        if reading is None or not 0 <= t - read_t < self._every_s:
            self._is_refused = False
            reading = self._read(handle, uuid)
            # A refused call is repeated at the next sweep.
            self._last[uuid] = (float("-inf") if self._is_refused else t, reading)
        return reading

    def forget(self) -> None:
        """Ask for everything again, after NVML was reinitialised."""
        self._absent.clear()

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
        return None if None in lists else sum(lists)

    def _ask(self, uuid: str, name: str, handle: Any, *args: Any) -> Any:
        key = (uuid, name, *args)
        if key in self._absent:
            return None
        try:
            return self._must(name, handle, *args)
        except CallRefused as refused:
            if refused.is_fatal:
                raise
            if refused.is_lasting:
                self._absent.add(key)
            elif refused.code not in calls.NO_VALUE:
                self._is_refused = True
            return None


XID_EVENT = 8
# Timeout of one wait, and so the upper bound of the time to stop.
WAIT_MS = 100
STOP_S = 2.0
PAUSE_S = 1.0
_TIMEOUT = 10


class XidWatch:
    """`must` and `call` call NVML or raise CallRefused; `call` is for the waiting thread.

    `about(uuid)`: the calls inside are about this GPU, so that a hang leaves out no other.
    Start it after NVML is initialised, stop it before NVML is shut down.
    """

    def __init__(
        self,
        must: Callable[..., Any],
        call: Callable[..., Any],
        about: Callable[[str], AbstractContextManager[None]],
    ) -> None:
        self._must = must
        self._call = call
        self._about = about
        self._heard: SimpleQueue[Xid] = SimpleQueue()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, handles: Mapping[str, Any]) -> None:
        """Listen to these GPUs, {uuid: handle}; silently to none where the driver can't."""
        self.stop()
        try:
            events = self._must("nvmlEventSetCreate")
        except CallRefused:
            return
        if not [uuid for uuid in handles if self._register(uuid, handles[uuid], events)]:
            self._free(events)
            return
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=self._listen,
            args=(events, dict(handles), self._stop),
            name="xids",
            daemon=True,
        )
        self._thread.start()

    def stop(self) -> None:
        if self._thread is not None:
            self._stop.set()
            # A daemon thread that hangs in the driver is abandoned.
            self._thread.join(STOP_S)
            self._thread = None

    def take(self) -> tuple[Xid, ...]:
        """Return and remove the XIDs received since the last call."""
        xids: list[Xid] = []
        try:
            while True:
                xids.append(self._heard.get_nowait())
        except Empty:
            return tuple(xids)

    def _register(self, uuid: str, handle: Any, events: Any) -> bool:
        try:
            with self._about(uuid):
                self._must("nvmlDeviceRegisterEvents", handle, XID_EVENT, events)
        except CallRefused:
            return False
        return True

    def _listen(self, events: Any, handles: Mapping[str, Any], stop: threading.Event) -> None:
        while not stop.is_set():
            try:
                event = self._call("nvmlEventSetWait_v2", events, WAIT_MS)
            except CallRefused as refused:
                if refused.code == _TIMEOUT:
                    continue
                if refused.code in calls.LIBRARY:
                    return
                # A GPU that is lost answers each wait at once.
                stop.wait(PAUSE_S)
                continue
            device, kind, data = event
            self._note(device, kind, data, handles)
        self._free(events)

    def _note(self, device: Any, kind: int, data: int, handles: Mapping[str, Any]) -> None:
        if kind != XID_EVENT:
            return
        for uuid, handle in handles.items():
            if _same(handle, device):
                self._heard.put(Xid(uuid, data))

    def _free(self, events: Any) -> None:
        try:
            self._call("nvmlEventSetFree", events)
        except CallRefused:
            return


def _same(answer: Any, other: Any) -> bool:
    """ctypes makes a new pointer object for each answer, so what it points to is compared."""
    try:
        return _address(answer) == _address(other)
    except ctypes.ArgumentError:
        return bool(answer == other)


def _address(handle: Any) -> int | None:
    return ctypes.cast(handle, ctypes.c_void_p).value
