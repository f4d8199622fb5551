"""Who used a GPU's energy: what it takes above idle goes to those who worked, by their share."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar

from monitor.readings import GpuReading

Key = TypeVar("Key", bound=Hashable)


@dataclass(slots=True)
class EnergyMeter:
    """One GPU's energy from sweep to sweep. `idle_w`: the least it took while nobody worked."""

    at: datetime | None = None
    counter_mj: int | None = None
    power_w: float | None = None
    idle_w: float | None = None

    def share(
        self,
        now: datetime,
        gpu: GpuReading,
        busy_s: Mapping[Key, float | None],
        gap_s: float,
    ) -> dict[Key, float | None]:
        """Joules of each since the reading before; None = unknown."""
        passed = (now - self.at).total_seconds() if self.at else 0.0
        spent = self._spent(gpu, passed) if 0 < passed <= gap_s else None
        self.at, self.counter_mj, self.power_w = now, gpu.energy_mj, gpu.power_w
        if spent is None:
            return dict.fromkeys(busy_s)
        self._learn_idle(gpu, busy_s, spent / passed)
        return self._divide(spent, passed, gpu, busy_s)

    def _spent(self, gpu: GpuReading, passed: float) -> float | None:
        """By the counter; where there is none or it went backwards, by power and time."""
        if self.counter_mj is not None and gpu.energy_mj is not None:
            joules = (gpu.energy_mj - self.counter_mj) / 1000
            if joules >= 0:
                return joules
        if self.power_w is None or gpu.power_w is None:
            return None
        return (self.power_w + gpu.power_w) / 2 * passed

    def _learn_idle(
        self, gpu: GpuReading, busy_s: Mapping[Key, float | None], mean_w: float
    ) -> None:
        rests = gpu.utilization_pct == 0 and all(busy == 0 for busy in busy_s.values())
        if rests and mean_w > 0:
            self.idle_w = mean_w if self.idle_w is None else min(self.idle_w, mean_w)

    def _divide(
        self, spent: float, passed: float, gpu: GpuReading, busy_s: Mapping[Key, float | None]
    ) -> dict[Key, float | None]:
        """By what each worked. Until the GPU was seen idle: the energy of the time worked."""
        device = (gpu.utilization_pct or 0.0) / 100 * passed
        # Work that no process is given takes its part too.
        worked = max(sum(busy for busy in busy_s.values() if busy is not None), device)
        if self.idle_w is None:
            active = spent * min(1.0, worked / passed)
        else:
            active = max(0.0, spent - self.idle_w * passed)
        each = active / worked if worked > 0 else 0.0
        return {key: None if busy is None else each * busy for key, busy in busy_s.items()}
