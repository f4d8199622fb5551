"""NVML's three process lists of a GPU, by the newest calls that the driver has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from monitor.policy.process_lists import Listed, merge
from monitor.probes import nvml_faults as faults
from monitor.probes.nvml_faults import Refused
from monitor.readings import GpuProcess

_TRIES = 3
_NO_INSTANCE = 0xFFFFFFFF
_CALLS = {
    "C": ("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2"),
    "G": ("nvmlDeviceGetGraphicsRunningProcesses_v3", "nvmlDeviceGetGraphicsRunningProcesses_v2"),
    "M": (
        "nvmlDeviceGetMPSComputeRunningProcesses_v3",
        "nvmlDeviceGetMPSComputeRunningProcesses_v2",
    ),
}


class ProcessLists:
    """`must(name, *args)` calls NVML or raises Refused; what the driver lacks is left out."""

    def __init__(self, must: Callable[..., Any]) -> None:
        self._must = must
        self._absent: set[str] = set()

    def of(self, handle: Any, gpu_uuid: str, total_bytes: int | None) -> list[GpuProcess]:
        """Every process on a GPU, once; Refused only when the GPU or the library is gone."""
        lines = [
            Listed(kind, int(entry.pid), entry.usedGpuMemory, _instance(entry))
            for kind in _CALLS
            for entry in self._list(kind, handle)
        ]
        return merge(gpu_uuid, lines, total_bytes)

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
