"""Rows of a measured past: a GPU, its hours, and processes on it."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django.contrib.auth.models import User

from monitor.models import Gpu, GpuHour, ProcessHour, ProcessUse
from monitor.usage.rows import rollups
from scheduler.models import Job, Quota
from scheduler.queue.planner import blockers as stored_blockers
from tests.builders import GIB, gpu_uuid
from tests.jobs_made import waiting
from tests.monitor.past import NOTHING, gpu_row, process_use

HOUR = 3600


def watched_gpu(since: datetime, until: datetime, index: int = 0, **changes: Any) -> Gpu:
    """A GPU with readings of each hour; it used 100 W."""
    gpu = gpu_row(gpu_uuid(index), since, index=index, last_seen_at=until, **changes)
    watch(gpu, since, until)
    return gpu


def watch(gpu: Gpu, since: datetime, until: datetime) -> None:
    first, last = (int(at.timestamp()) for at in (since, until))
    seen = {**NOTHING, "seen_s": HOUR, "energy_j": 100.0 * HOUR, "power_known_s": HOUR}
    GpuHour.objects.bulk_create(
        GpuHour(gpu=gpu, t=t, **seen) for t in range(rollups.floor(first, HOUR), last, HOUR)
    )


def contended(owner: User, since: datetime) -> Job:
    """A job that has waited since then for GPUs in use."""
    job = waiting(owner, since)
    Job.objects.filter(pk=job.pk).update(blocker_log=stored_blockers.log_entry("GpuTaken", since))
    return job


def share_of_all(pct: float = 30.0) -> Quota:
    """The default quota grants each user this part of the machine."""
    return Quota.objects.create(share_pct=pct)


def ran(
    gpu: Gpu,
    since: datetime,
    hours: float,
    pct: float | None = 95.0,
    watts: float = 300.0,
    **changes: Any,
) -> ProcessUse:
    """Alice's python at `pct` of the GPU (None: not measured) from a full hour on."""
    until = since + timedelta(hours=hours)
    use = process_use(gpu, since, **({"pid": 12345, "last_seen_at": until} | changes))
    begin, left = int(since.timestamp()), hours * HOUR
    while left > 0:
        held = min(left, float(HOUR))
        known = 0.0 if pct is None else held
        ProcessHour.objects.create(
            use=use, t=begin, held_s=held, known_s=known, sm_s=known * (pct or 0) / 100,
            memory_byte_s=held * 10 * GIB, memory_known_s=held, peak_memory_bytes=11 * GIB,
            joules=held * watts,
        )  # fmt: skip
        use.held_s += held
        use.known_s += known
        use.sm_s += known * (pct or 0) / 100
        begin, left = begin + HOUR, left - held
    use.peak_memory_bytes = 11 * GIB
    use.save()
    return use
