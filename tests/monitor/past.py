"""Rows of the past with defaults: rollups and uses of processes."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from monitor.models import Gpu, ProcessUse

# A rollup of a GPU of which nothing was known.
NOTHING: dict[str, Any] = {
    "seen_s": 0,
    "utilization_pct_s": 0.0,
    "utilization_known_s": 0,
    "memory_byte_s": 0,
    "memory_known_s": 0,
    "energy_j": 0.0,
    "power_known_s": 0,
}


def process_use(gpu: Gpu, at: datetime, **changes: Any) -> ProcessUse:
    """A process of alice's that was there for an instant."""
    facts: dict[str, Any] = {
        "host": gpu.host,
        "pid": 4_200_001,
        "start_ticks": 7,
        "user": "alice",
        "program": "python",
        "first_seen_at": at,
        "last_seen_at": at,
    }
    return ProcessUse.objects.create(gpu=gpu, **(facts | changes))


def gpu_row(uuid: str, at: datetime, **changes: Any) -> Gpu:
    facts: dict[str, Any] = {
        "host": "box",
        "index": 0,
        "name": "NVIDIA H100 80GB HBM3",
        "memory_total_bytes": 80 * 1024**3,
        "power_limit_w": 700.0,
        "state_since_at": at,
        "first_seen_at": at,
        "last_seen_at": at,
    }
    return Gpu.objects.create(uuid=uuid, **(facts | changes))


# The same of a host.
HOST_NOTHING: dict[str, Any] = {
    "seen_s": 0,
    "cpu_pct_s": 0.0,
    "cpu_known_s": 0,
    "load_s": 0.0,
    "load_known_s": 0,
    "memory_byte_s": 0,
    "memory_known_s": 0,
    "disk_read_bytes": 0.0,
    "disk_written_bytes": 0.0,
    "disk_known_s": 0,
    "cpu_pressure_pct_s": 0.0,
    "memory_pressure_pct_s": 0.0,
    "io_pressure_pct_s": 0.0,
    "pressure_known_s": 0,
}
