"""The MIG instances of a GPU: their memory, and the processes in each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from monitor.policy.process_lists import Listed
from monitor.probes import nvml_values as values
from monitor.probes.nvml_calls import Calls
from monitor.probes.nvml_processes import ProcessLists
from monitor.use_facts import InstanceReading

MIG_ON = 1


class Instances:
    """Reads them in one sweep; where MIG is off there are none."""

    def __init__(self, calls: Calls, lists: ProcessLists) -> None:
        self._calls = calls
        self._lists = lists

    def of(self, handle: Any, gpu_uuid: str) -> tuple[list[InstanceReading], list[Listed]]:
        """The instances, and the lines of their own lists of processes."""
        readings: list[InstanceReading] = []
        lines: list[Listed] = []
        for instance in self._handles(handle):
            number = self._calls.ask("nvmlDeviceGetGpuInstanceId", instance)
            memory = self._calls.ask("nvmlDeviceGetMemoryInfo", instance)
            readings.append(
                InstanceReading(
                    gpu_uuid=gpu_uuid,
                    uuid=values.text(self._calls.ask("nvmlDeviceGetUUID", instance)) or "",
                    instance=number,
                    name=values.text(self._calls.ask("nvmlDeviceGetName", instance)),
                    memory_total_bytes=memory.total if memory else None,
                    memory_used_bytes=memory.used if memory else None,
                )
            )
            lines += self._lists.lines(instance, f"{gpu_uuid}/{number}", number)
        return readings, lines

    def _handles(self, handle: Any) -> Iterator[Any]:
        mode = self._calls.ask("nvmlDeviceGetMigMode", handle)
        if not mode or mode[0] != MIG_ON:
            return
        for index in range(self._calls.ask("nvmlDeviceGetMaxMigDeviceCount", handle) or 0):
            instance = self._calls.ask("nvmlDeviceGetMigDeviceHandleByIndex", handle, index)
            if instance is not None:
                yield instance
