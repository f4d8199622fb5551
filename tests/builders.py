"""Facts with keyword defaults: a test names only what matters to it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from monitor.facts.accounts import ClaimFact
from monitor.facts.readings import GpuReading, HostReading, ProcessReading, Snapshot
from scheduler.facts.jobs import QueuedJob, Requirement
from scheduler.facts.plans import Slot

GIB = 1024**3
NOW = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)
PASSWORD = "correct horse battery staple"


def gpu_uuid(index: int = 0) -> str:
    return f"GPU-{index:08x}-0000-4000-8000-{index:012x}"


def gpu(index: int = 0, **changes: Any) -> GpuReading:
    """An idle, healthy 80 GiB GPU."""
    facts: dict[str, Any] = {
        "uuid": gpu_uuid(index),
        "index": index,
        "name": "NVIDIA H100 80GB HBM3",
        "pci_id": f"00000000:{index + 1:02X}:00.0",
        "memory_total_bytes": 80 * GIB,
        "memory_used_bytes": 0,
        "memory_reserved_bytes": 0,
        "utilization_pct": 0.0,
        "memory_utilization_pct": 0.0,
        "power_w": 70.0,
        "power_limit_w": 700.0,
        "temperature_c": 35.0,
        "sm_clock_mhz": 345,
        "memory_clock_mhz": 2619,
        "performance_state": 0,
        "compute_capability": "9.0",
    }
    return GpuReading(**(facts | changes))


def process(pid: int = 4_200_001, on: int = 0, **changes: Any) -> ProcessReading:
    """Alice's python on GPU `on`, with 1 GiB; no job of ours."""
    facts: dict[str, Any] = {
        "gpu_uuid": gpu_uuid(on),
        "pid": pid,
        "start_ticks": 1000 + pid,
        "created_at": NOW,
        "uid": 1001,
        "user": "alice",
        "program": "python",
        "command": ("python", "train.py", "--lr", "3e-4"),
        "memory_bytes": GIB,
        "sm_pct": 50.0,
    }
    return ProcessReading(**(facts | changes))


def host(**changes: Any) -> HostReading:
    """A quiet machine with 64 CPUs and 512 GiB."""
    facts: dict[str, Any] = {
        "name": "gpubox",
        "boot_id": "b007-1d",
        "cpu_count": 64,
        "cpu_pct": 5.0,
        "load_1": 1.0,
        "load_5": 1.0,
        "load_15": 1.0,
        "memory_total_bytes": 512 * GIB,
        "memory_available_bytes": 400 * GIB,
        "swap_total_bytes": 0,
        "swap_used_bytes": 0,
    }
    return HostReading(**(facts | changes))


def snapshot(
    gpus: Sequence[GpuReading] | int = 1,
    processes: Sequence[ProcessReading] = (),
    **changes: Any,
) -> Snapshot:
    """One instant of one host. `gpus` is a number of idle ones, or the readings themselves."""
    readings = [gpu(i) for i in range(gpus)] if isinstance(gpus, int) else gpus
    facts: dict[str, Any] = {"seq": 1, "at": NOW, "probe": "simulated", "host": host()}
    return Snapshot(gpus=tuple(readings), processes=tuple(processes), **(facts | changes))


def claim(job_ref: str = "1", on: int = 0, **changes: Any) -> ClaimFact:
    facts: dict[str, Any] = {"job_ref": job_ref, "gpu_uuid": gpu_uuid(on), "owner": "alice"}
    return ClaimFact(**(facts | changes))


def queued_job(id: int = 1, **changes: Any) -> QueuedJob:
    """Alice's job; gpus, memory_bytes and exclusive go into its requirement."""
    asked = {k: changes.pop(k) for k in ("gpus", "memory_bytes", "exclusive") if k in changes}
    facts: dict[str, Any] = {
        "id": id,
        "owner": "alice",
        "priority": 3,
        "submitted_at": NOW,
        "requirement": Requirement(**asked),
    }
    return QueuedJob(**(facts | changes))


def slot(index: int = 0, **changes: Any) -> Slot:
    """A healthy GPU with 80 GiB, all of it free."""
    facts: dict[str, Any] = {
        "gpu_uuid": gpu_uuid(index),
        "host": "gpubox",
        "index": index,
        "total_bytes": 80 * GIB,
        "free_bytes": 80 * GIB,
    }
    return Slot(**(facts | changes))
