"""Processes on GPUs, looked at less often than the GPUs: lists of processes cost milliseconds.

Who is on a GPU is not asked again while its used memory is the same to the byte and all its
processes live: whoever comes takes memory, whoever goes leaves /proc. How much each works is asked
at each look.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from monitor.policy.process_lists import merge, with_instances
from monitor.probes.nvml_calls import Calls
from monitor.probes.nvml_instances import Instances
from monitor.probes.nvml_processes import ProcessLists
from monitor.probes.nvml_use import ProcessUse
from monitor.readings import GpuProcess, GpuReading, GpuSweep
from monitor.use_facts import InstanceReading

# A list that nobody was on, or that would be the same again, rests for so many sweeps.
REST = 4
# All of it may take this share of the time; where it takes more, it comes less often.
SHARE, LONGEST_S = 0.05, 5.0
# A sweep that comes a little early still counts as on time.
EARLY_S = 0.3


@dataclass(frozen=True, slots=True)
class _Listing:
    """What the lists of a GPU said while so much memory was used and those pids were alive."""

    processes: list[GpuProcess]
    instances: list[InstanceReading]
    used_bytes: int | None
    alive: frozenset[int]
    age: int = 0


class ProcessTier:
    """Swept each `interval_s` (0: whenever GPUs are); in between it tells what it saw last."""

    def __init__(self, calls: Calls, interval_s: float) -> None:
        self._least_s = self.interval_s = interval_s
        self._lists = ProcessLists(calls.must, REST if interval_s else 0)
        self._found = Instances(calls, self._lists)
        self.use = ProcessUse(calls.must)
        self._swept_at: datetime | None = None
        self._spent = 0.0
        self.is_fresh = True
        self._processes: list[GpuProcess] = []
        self._instances: list[InstanceReading] = []
        self._listings: dict[str, _Listing] = {}

    def begin(self, now: datetime) -> None:
        """A sweep over the GPUs begins."""
        self.use.begin()
        passed = (now - self._swept_at).total_seconds() if self._swept_at else None
        self.is_fresh = passed is None or not 0 <= passed < self.interval_s - EARLY_S
        if self.is_fresh:
            self._swept_at, self._spent = now, 0.0
            self._processes, self._instances = [], []

    def look(self, handle: Any, gpu: GpuReading, now: datetime) -> None:
        """The processes of one GPU, if they are due; Refused when the GPU is gone."""
        self.use.note(gpu.uuid, gpu.utilization_pct)
        if not self.is_fresh:
            return
        began = time.perf_counter()
        listing = self._listings[gpu.uuid] = self._listing(handle, gpu)
        self._processes += self.use.of(handle, gpu.uuid, listing.processes, now)
        self._instances += listing.instances
        self._spent += time.perf_counter() - began

    def _listing(self, handle: Any, gpu: GpuReading) -> _Listing:
        last = self._listings.get(gpu.uuid)
        if last is not None and self._is_same(last, gpu):
            return replace(last, age=last.age + 1)
        instances, inside = self._found.of(handle, gpu.uuid)
        lines = with_instances(self._lists.lines(handle, gpu.uuid), inside)
        processes = merge(gpu.uuid, lines, gpu.memory_total_bytes)
        return _Listing(processes, instances, gpu.memory_used_bytes, _alive(processes))

    def _is_same(self, last: _Listing, gpu: GpuReading) -> bool:
        return (
            self._least_s > 0
            and last.age < REST
            and not last.instances
            and last.used_bytes is not None
            and last.used_bytes == gpu.memory_used_bytes
            and last.alive == _alive(last.processes)
        )

    def end(self) -> None:
        """All GPUs were looked at: where that took long, the next look comes later."""
        if self.is_fresh and self._least_s:
            wanted = min(LONGEST_S, self._spent / SHARE)
            self.interval_s = max(self._least_s, wanted)

    def added_to(self, sweep: GpuSweep, answering: Collection[str]) -> GpuSweep:
        """The sweep with the processes of those GPUs that answer."""
        return replace(
            sweep,
            processes=tuple(p for p in self._processes if p.gpu_uuid in answering),
            instances=tuple(i for i in self._instances if i.gpu_uuid in answering),
            is_fresh=self.is_fresh,
            ended=tuple(self.use.ended),
            marks=self.use.marks,
            dropped=self.use.dropped,
        )


def _alive(processes: Collection[GpuProcess]) -> frozenset[int]:
    """Those that are in our /proc."""
    return frozenset(p.pid for p in processes if Path(f"/proc/{p.pid}").exists())
