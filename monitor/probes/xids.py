"""Listens for XIDs, the errors that the driver reports of a GPU, in a thread of its own."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Mapping
from queue import Empty, SimpleQueue
from typing import Any

from monitor.health import Xid
from monitor.probes import nvml_faults as faults
from monitor.probes.nvml_faults import Refused

XID_EVENT = 8
# How long one wait lasts, and so how long stopping may take.
WAIT_MS = 100
STOP_S = 2.0
PAUSE_S = 1.0
_TIMEOUT = 10


class XidWatch:
    """`must` and `call` ask NVML or raise Refused; `call` is for the thread, which waits by trade.

    Start it after NVML is initialised, stop it before NVML is shut down.
    """

    def __init__(self, must: Callable[..., Any], call: Callable[..., Any]) -> None:
        self._must = must
        self._call = call
        self._heard: SimpleQueue[Xid] = SimpleQueue()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, handles: Mapping[str, Any]) -> None:
        """Listen to these GPUs, {uuid: handle}; silently to none where the driver can't."""
        self.stop()
        try:
            events = self._must("nvmlEventSetCreate")
        except Refused:
            return
        if not [uuid for uuid, handle in handles.items() if self._register(handle, events)]:
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
            # One that hangs in the driver is left behind; it is a daemon.
            self._thread.join(STOP_S)
            self._thread = None

    def take(self) -> tuple[Xid, ...]:
        """All that were heard since the last time."""
        found: list[Xid] = []
        try:
            while True:
                found.append(self._heard.get_nowait())
        except Empty:
            return tuple(found)

    def _register(self, handle: Any, events: Any) -> bool:
        try:
            self._must("nvmlDeviceRegisterEvents", handle, XID_EVENT, events)
        except Refused:
            return False
        return True

    def _listen(self, events: Any, handles: Mapping[str, Any], stop: threading.Event) -> None:
        while not stop.is_set():
            try:
                event = self._call("nvmlEventSetWait_v2", events, WAIT_MS)
            except Refused as refused:
                if refused.code == _TIMEOUT:
                    continue
                if refused.code in faults.LIBRARY:
                    return
                # A GPU that is lost answers each wait at once.
                stop.wait(PAUSE_S)
                continue
            self._note(event, handles)
        self._free(events)

    def _note(self, event: Any, handles: Mapping[str, Any]) -> None:
        if event.eventType != XID_EVENT:
            return
        for uuid, handle in handles.items():
            if _same(handle, event.device):
                self._heard.put(Xid(uuid, int(event.eventData)))

    def _free(self, events: Any) -> None:
        try:
            self._call("nvmlEventSetFree", events)
        except Refused:
            return


def _same(one: Any, other: Any) -> bool:
    """ctypes makes a new pointer object for each answer, so what it points to is compared."""
    try:
        return _address(one) == _address(other)
    except ctypes.ArgumentError:
        return bool(one == other)


def _address(handle: Any) -> int | None:
    return ctypes.cast(handle, ctypes.c_void_p).value
