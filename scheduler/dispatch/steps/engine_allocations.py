"""Stores which GPUs an engine gave to an attempt."""

from __future__ import annotations

from datetime import datetime

from monitor.gpus.snapshot import rows as snapshots
from monitor.models import Gpu
from monitor.runtime.facts import Guard
from scheduler.execution.engines.facts import Allocation, TaskReport
from scheduler.jobs.lifecycle.rows import transitions
from scheduler.models import Attempt, EngineTask


def record_allocation(
    guard: Guard, nonce: str, ref: str, allocation: Allocation, node: str, now: datetime
) -> None:
    """`node` is the host that the engine named last; "": none.

    An attempt that has ended, whose GPUs are known, or that is in another task than `ref`, stays as
    it is.
    """
    open_attempts = Attempt.objects.filter(nonce=nonce, engine_ref=ref, ended_at=None)
    row = open_attempts.select_related("job__owner").first()
    if row is None or row.gpu_uuids:
        return
    row.node = row.node or node or next(iter(allocation.gpu_indices), "")
    row.gpu_uuids = _uuids_of(row.node, allocation.gpu_indices.get(row.node, ()))
    with guard():
        EngineTask.objects.filter(nonce=nonce).update(gpus=allocation.gpus)
        unnamed = Attempt.objects.filter(pk=row.pk, engine_ref=ref, ended_at=None, gpu_uuids=[])
        if unnamed.update(node=row.node, gpu_uuids=row.gpu_uuids) and row.gpu_uuids:
            transitions.open_claims(row, now)


def follow_task(nonce: str, report: TaskReport, now: datetime) -> None:
    """The open attempt runs in this task of the engine: with another one go its node and GPUs.

    The GPUs of the right task are requested afterwards. Call it inside the guard.
    """
    rows = Attempt.objects.filter(nonce=nonce, ended_at=None).exclude(engine="")
    attempt = rows.exclude(engine_ref=report.ref).first()
    if attempt is None:
        return
    if attempt.gpu_uuids:
        snapshots.close_claims(str(attempt.job_id), now)
    EngineTask.objects.filter(nonce=nonce).update(gpus=None)
    Attempt.objects.filter(pk=attempt.pk).update(
        engine_ref=report.ref, node=report.node, gpu_uuids=[]
    )


def _uuids_of(node: str, indices: tuple[int, ...]) -> list[str]:
    """The GPUs with these indices on a monitored host; [] unless all of them are there."""
    if not node or not indices:
        return []
    rows = dict(Gpu.objects.filter(host=node).values_list("index", "uuid"))
    return [rows[index] for index in indices] if all(i in rows for i in indices) else []
