"""Attribute a GPU's energy above idle power to its processes, in proportion to their work."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from monitor.facts.readings import GpuReading

# Power counts as idle power after this time at rest, because it falls slowly after work.
REST_S = 6.0
# Idle power is this quantile of the newest readings, so one wrong reading does not change it.
READINGS, QUANTILE = 16, 0.25


# Work that processes are given more than this much later is not theirs.
LATE_S = 1.0


@dataclass(slots=True)
class EnergyMeter:
    """One GPU's energy from sweep to sweep.

    `idle_w`: its idle power; `rest_w`: the newest power readings at rest; `rest_s`: how long it has
    been at rest, `rest_j`: its energy in that time. `device_s`: its work since the last sweep, up
    to `noted_at`. `late_s`, `late_j`: work of the last sweep that no process has been given yet,
    and its energy, because samples of processes arrive later than the counter. The energy may be
    below 0, because the counter is not read exactly when the sweep begins. `paid`: the work of each
    process in the last sweep.
    """

    at: datetime | None = None
    counter_mj: int | None = None
    power_w: float | None = None
    idle_w: float | None = None
    rest_w: list[float] = field(default_factory=list)
    rest_s: float = 0.0
    rest_j: float = 0.0
    device_s: float = 0.0
    noted_at: datetime | None = None
    late_s: float = 0.0
    late_j: float = 0.0
    paid: dict[int, float] = field(default_factory=dict)

    def note(self, now: datetime, utilization_pct: float | None) -> None:
        """Add a reading of the GPU's utilisation, which covers the time since the one before."""
        passed = (now - self.noted_at).total_seconds() if self.noted_at else 0.0
        self.device_s += (utilization_pct or 0.0) / 100 * max(0.0, passed)
        self.noted_at = now

    def share(
        self, now: datetime, gpu: GpuReading, busy_s: Mapping[int, float | None], gap_s: float
    ) -> dict[int, float | None]:
        """Joules by pid since the sweep before; None = unknown. `busy_s`: work by pid.

        Also contains processes of the sweep before, when the GPU has come to rest.
        """
        self.note(now, gpu.utilization_pct)
        device_s, self.device_s = self.device_s, 0.0
        passed = (now - self.at).total_seconds() if self.at else 0.0
        spent = self._spent(gpu, passed) if 0 < passed <= gap_s else None
        self.at, self.counter_mj, self.power_w = now, gpu.energy_mj, gpu.power_w
        if spent is None:
            self.late_s, self.late_j, self.paid = 0.0, 0.0, {}
            return dict.fromkeys(busy_s)
        self._learn_idle(gpu, busy_s, spent, passed)
        work = {pid: busy for pid, busy in busy_s.items() if busy is not None}
        device_s = min(device_s, passed)
        if self.idle_w is None:
            # Until the GPU was seen idle, the energy of all working time is divided.
            above = spent * min(1.0, max(sum(work.values()), device_s) / passed)
        else:
            above = spent - self.idle_w * passed
        if device_s > 0 or any(work.values()):
            joules = self._divide(above, device_s, work)
        else:
            joules = self._settle(above, is_known=len(work) == len(busy_s))
        return dict.fromkeys(busy_s) | dict.fromkeys(work, 0.0) | joules

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
        self, gpu: GpuReading, busy_s: Mapping[int, float | None], spent: float, passed: float
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

    def _divide(self, above: float, device_s: float, work: Mapping[int, float]) -> dict[int, float]:
        """Divide by work: first the late work, then that of this sweep.

        Work that no process is given takes its part, too.
        """
        total = sum(work.values())
        of_late = min(total, self.late_s)
        due = self.late_j * (of_late / self.late_s if self.late_s > 0 else total > 0)
        new = total - of_late
        worked = max(device_s, new)
        part = above * new / worked if worked > 0 else 0.0
        due += part
        self.late_s, self.late_j = worked - new, above - part
        if due < 0 or total <= 0:
            self.late_j += due
            due = 0.0
        self.paid = {pid: busy for pid, busy in work.items() if busy > 0}
        return {pid: due * busy / total for pid, busy in self.paid.items()}

    def _settle(self, above: float, *, is_known: bool) -> dict[int, float]:
        """At rest, the rest of the energy goes to those who worked last.

        Without them it is energy of work that begins: the counter is read later than the sweep.
        """
        paid, due = self.paid, self.late_j + above
        is_theirs = bool(paid) and is_known and self.late_s <= LATE_S and due > 0
        self.late_s, self.late_j, self.paid = 0.0, 0.0 if paid else above, {}
        total = sum(paid.values())
        return {pid: due * busy / total for pid, busy in paid.items()} if is_theirs else {}
