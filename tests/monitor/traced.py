"""A GPU server under the fake driver, watched as the sampler does it: probe, then account."""

from __future__ import annotations

from datetime import datetime, timedelta

from monitor.facts.readings import GpuSweep, ProcessIdentity
from monitor.gpus.sampling.probes.nvml import NvmlProbe
from monitor.owners.policy import attribute
from monitor.usage.policy.accounting import ProcessRecord, ProcessUses
from tests.builders import NOW
from tests.monitor.fake_nvml import FakeNvml

EVERY_S = 2.0


class Watched:
    """`run` lets driver time and our time pass together, with a sweep each second."""

    def __init__(self, nvml: FakeNvml, processes_s: float = EVERY_S) -> None:
        self.nvml = nvml
        self.probe = NvmlProbe(processes_s)
        self.probe.open()
        self.uses = ProcessUses()
        self.now: datetime = NOW
        self.who: dict[int, ProcessIdentity] = {}
        self.done: list[ProcessRecord] = []
        self.last = GpuSweep()
        self.moves = 1
        self.dropped = 0

    def runs(self, pid: int, user: str, start_ticks: int = 1, age_s: float = 3600) -> None:
        """This pid is, from now on, this user's process."""
        created = self.now - timedelta(seconds=age_s)
        self.who[pid] = ProcessIdentity(
            pid=pid, start_ticks=start_ticks, created_at=created, user=user
        )

    def sweep(self) -> GpuSweep:
        self.last = sweep = self.probe.read(self.now, ())
        self.dropped += sweep.dropped
        if sweep.is_fresh:
            processes = attribute(sweep.processes, self.who, ())
            busy = {(p.gpu_uuid, p.pid): p.busy_s for p in sweep.processes if p.busy_s is not None}
            self.uses.take(self.now, sweep.gpus, processes, busy, sweep.ended)
            self.done += self.uses.ended
            self.uses.taken()
        return sweep

    def passes(self, seconds: float) -> None:
        """Time in which nobody looks."""
        self.now += timedelta(seconds=seconds)
        self.nvml.now_us += round(seconds * 1e6)
        for gpu in self.nvml.gpus:
            # As on a GPU at work: its lists are asked at each look.
            gpu.used += self.moves

    def run(self, seconds: float, step_s: float = 1.0) -> None:
        for _ in range(round(seconds / step_s)):
            self.passes(step_s)
            self.sweep()

    def of(self, user: str) -> ProcessRecord:
        (found,) = [use for use in (*self.uses.open.values(), *self.done) if use.user == user]
        return found

    @property
    def t(self) -> float:
        """The driver's clock, in seconds."""
        return self.nvml.now_us / 1e6
