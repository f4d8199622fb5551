"""Attribute a GPU's energy above idle power to its processes, in proportion to their work."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TypeVar

from monitor.facts.readings import GpuReading

Key = TypeVar("Key", bound=Hashable)

# Power counts as idle power after this time at rest, because it falls slowly after work.
REST_S = 6.0
# Idle power is this quantile of the newest readings, so one wrong reading does not change it.
READINGS, QUANTILE = 16, 0.25


@dataclass(slots=True)
class EnergyMeter:
    """One GPU's energy from sweep to sweep.

    `idle_w`: its idle power; `rest_w`: the newest power readings at rest; `rest_s`: how long it has
    been at rest, `rest_j`: its energy in that time; `owed_j`: energy below idle power, measured
    because the counter is not read exactly when the sweep begins.
    """

    at: datetime | None = None
    counter_mj: int | None = None
    power_w: float | None = None
    idle_w: float | None = None
    rest_w: list[float] = field(default_factory=list)
    rest_s: float = 0.0
    rest_j: float = 0.0
    owed_j: float = 0.0

    def share(
        self,
        now: datetime,
        gpu: GpuReading,
        busy_s: Mapping[Key, float | None],
        gap_s: float,
    ) -> dict[Key, float | None]:
        """Joules of each process since the reading before; None = unknown."""
        passed = (now - self.at).total_seconds() if self.at else 0.0
        spent = self._spent(gpu, passed) if 0 < passed <= gap_s else None
        self.at, self.counter_mj, self.power_w = now, gpu.energy_mj, gpu.power_w
        if spent is None:
            return dict.fromkeys(busy_s)
        self._learn_idle(gpu, busy_s, spent, passed)
        return self._divide(spent, passed, gpu, busy_s)

    def _spent(self, gpu: GpuReading, passed: float) -> float | None:
        """Energy by the counter; without one, or if it went backwards, power × time."""
        if self.counter_mj is not None and gpu.energy_mj is not None:
            joules = (gpu.energy_mj - self.counter_mj) / 1000
            if joules >= 0:
                return joules
        if self.power_w is None or gpu.power_w is None:
            return None
        return (self.power_w + gpu.power_w) / 2 * passed

    def _learn_idle(
        self, gpu: GpuReading, busy_s: Mapping[Key, float | None], spent: float, passed: float
    ) -> None:
        if gpu.utilization_pct != 0 or any(busy != 0 for busy in busy_s.values()):
            self.rest_s = self.rest_j = 0.0
            return
        self.rest_s += passed
        self.rest_j += spent
        # Without a power reading, the mean over a long rest smooths late readings.
        reading = self.rest_j / self.rest_s if gpu.power_w is None else gpu.power_w
        if reading <= 0 or (self.rest_s < REST_S and self.idle_w is not None):
            return
        self.rest_w = [*self.rest_w, round(reading, 1)][-READINGS:]
        self.idle_w = sorted(self.rest_w)[int(QUANTILE * (len(self.rest_w) - 1))]

    def _divide(
        self, spent: float, passed: float, gpu: GpuReading, busy_s: Mapping[Key, float | None]
    ) -> dict[Key, float | None]:
        """Divide by work.

        Until the GPU was seen idle, the energy of all working time is divided.
        """
        device = (gpu.utilization_pct or 0.0) / 100 * passed
        # Unattributed work takes its part, too.
        worked = max(sum(busy for busy in busy_s.values() if busy is not None), device)
        if self.idle_w is None:
            active = spent * min(1.0, worked / passed)
        else:
            above = spent - self.idle_w * passed + (self.owed_j if worked > 0 else 0.0)
            active, self.owed_j = max(0.0, above), min(0.0, above) if worked > 0 else 0.0
        each = active / worked if worked > 0 else 0.0
        return {key: None if busy is None else each * busy for key, busy in busy_s.items()}
