"""Probes: what can read GPUs, and which one this machine uses."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from monitor.readings import ClaimFact, GpuSweep


class GpuProbe(Protocol):
    """Reads all GPUs at an instant. Opened in the process that reads, after the fork."""

    @property
    def name(self) -> str: ...

    def open(self) -> None: ...

    def read(self, now: datetime, claims: Sequence[ClaimFact]) -> GpuSweep: ...

    def close(self) -> None: ...
