"""Operator actions on a GPU: pause, resume, end its quarantine."""

from __future__ import annotations

from datetime import datetime

from django.db import transaction

from monitor.facts.gpu_states import ClosureFact, ClosureKind
from monitor.gpus import rows as availability
from monitor.gpus.snapshot import rows as snapshots
from monitor.journal.rows import audit, events
from monitor.models import Gpu
from monitor.runtime.rows.wakeups import wake

REASON_LIMIT = 200


def pause(gpu: Gpu, by: str, reason: str, now: datetime) -> bool:
    """No new jobs start on the GPU; running jobs continue. False: it was already paused."""
    reason = " ".join(reason.split())[:REASON_LIMIT]
    fact = ClosureFact(gpu_uuid=gpu.uuid, kind=ClosureKind.PAUSED, since=now, by=by, reason=reason)
    with transaction.atomic():
        if not availability.close(fact, gpu.host):
            return False
        why = f": {reason}" if reason else "."
        _tell("GPU_PAUSED", f"{by} paused GPU {gpu.index}{why}", gpu, by, now)
    return True


def resume(gpu: Gpu, by: str, now: datetime) -> bool:
    """Allow new jobs again. False: the GPU was not paused."""
    with transaction.atomic():
        if not availability.reopen([gpu.uuid], ClosureKind.PAUSED, now):
            return False
        _tell("GPU_RESUMED", f"{by} let GPU {gpu.index} take work again.", gpu, by, now)
    return True


def release(gpu: Gpu, by: str, now: datetime) -> bool:
    """End the quarantine although memory is still in use. False: there was no quarantine."""
    with transaction.atomic():
        if not availability.reopen([gpu.uuid], ClosureKind.QUARANTINED, now):
            return False
        # Otherwise the next sweep would quarantine it again.
        ended = [
            c.row for c in snapshots.held_claims(gpu.host) if c.gpu_uuid == gpu.uuid and c.until
        ]
        snapshots.mark_claims_freed([row for row in ended if row is not None], now)
        text = f"{by} ended the quarantine of GPU {gpu.index}."
        _tell("GPU_QUARANTINE_OVER", text, gpu, by, now)
    return True


def _tell(kind: str, text: str, gpu: Gpu, by: str, now: datetime) -> None:
    audit.note(kind, text, by=by, now=now, subject=f"GPU {gpu.uuid}")
    events.add(kind, text, now=now, host=gpu.host, gpu_uuid=gpu.uuid)
    wake("scheduler")
    wake("live")
