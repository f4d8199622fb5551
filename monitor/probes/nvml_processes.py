"""NVML's three process lists of a GPU, by the newest calls that the driver has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from monitor.policy.process_lists import Listed
from monitor.probes import nvml_faults as faults
from monitor.probes.nvml_faults import Refused

_TRIES = 3
COMPUTE = "C"
_NO_INSTANCE = 0xFFFFFFFF
_CALLS = {
    COMPUTE: ("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2"),
    "G": ("nvmlDeviceGetGraphicsRunningProcesses_v3", "nvmlDeviceGetGraphicsRunningProcesses_v2"),
    "M": (
        "nvmlDeviceGetMPSComputeRunningProcesses_v3",
        "nvmlDeviceGetMPSComputeRunningProcesses_v2",
    ),
}


class ProcessLists:
    """`must(name, *args)` calls NVML or raises Refused; what the driver lacks is left out.

    Each list costs milliseconds: that of a kind nobody was on is asked again after `rest` sweeps.
    """

    def __init__(self, must: Callable[..., Any], rest: int = 0) -> None:
        self._must = must
        self._rest = rest
        self._resting: dict[tuple[str, str], int] = {}
        self._absent: set[str] = set()

    def lines(self, handle: Any, name: str, instance: int | None = None) -> list[Listed]:
        """The lines of all lists of the GPU, or MIG instance, that is remembered by `name`.

        Refused only when the GPU or the library is gone.
        """
        found: list[Listed] = []
        for kind in _CALLS:
            key = (name, kind)
            if self._resting.get(key, 0) > 0:
                self._resting[key] -= 1
                continue
            entries = self._list(kind, handle)
            if not entries and kind != COMPUTE:
                self._resting[key] = self._rest
            for entry in entries:
                where = _instance(entry) if instance is None else instance
                found.append(Listed(kind, int(entry.pid), entry.usedGpuMemory, where))
        return found

    def _list(self, kind: str, handle: Any) -> Sequence[Any]:
        for name in _CALLS[kind]:
            if name not in self._absent:
                try:
                    return self._call(name, handle)
                except Refused as refused:
                    if refused.is_fatal:
                        raise
                    if refused.code != faults.FUNCTION_NOT_FOUND:
                        return ()
                    self._absent.add(name)
        return ()

    def _call(self, name: str, handle: Any) -> Sequence[Any]:
        """The list grows between asking for its size and for itself: then ask again."""
        for _ in range(_TRIES - 1):
            try:
                return list(self._must(name, handle))
            except Refused as refused:
                if refused.code != faults.INSUFFICIENT_SIZE:
                    raise
        return list(self._must(name, handle))


def _instance(entry: Any) -> int | None:
    """The MIG instance that the process is in."""
    instance = getattr(entry, "gpuInstanceId", None)
    return None if instance is None or instance == _NO_INSTANCE else int(instance)


NAMES = tuple(name for names in _CALLS.values() for name in names)
