"""Rows: an operator closes a GPU to new work, opens it again, or ends its quarantine."""

from __future__ import annotations

from datetime import datetime

from django.db import transaction

from monitor import audit, events, gpu_closing, store
from monitor.gpu_closures import ClosureFact, ClosureKind
from monitor.models import Gpu
from monitor.wake import wake

REASON_LIMIT = 200


def pause(gpu: Gpu, by: str, reason: str, now: datetime) -> bool:
    """Let nothing new start on the GPU; what runs there may end. False = it was paused already."""
    reason = " ".join(reason.split())[:REASON_LIMIT]
    fact = ClosureFact(gpu_uuid=gpu.uuid, kind=ClosureKind.PAUSED, since=now, by=by, reason=reason)
    with transaction.atomic():
        if not gpu_closing.close(fact, gpu.host):
            return False
        why = f": {reason}" if reason else "."
        _tell("GPU_PAUSED", f"{by} paused GPU {gpu.index}{why}", gpu, by, now)
    return True


def resume(gpu: Gpu, by: str, now: datetime) -> bool:
    """Let work start there again; False = it was not paused."""
    with transaction.atomic():
        if not gpu_closing.reopen([gpu.uuid], ClosureKind.PAUSED, now):
            return False
        _tell("GPU_RESUMED", f"{by} let GPU {gpu.index} take work again.", gpu, by, now)
    return True


def release(gpu: Gpu, by: str, now: datetime) -> bool:
    """End its quarantine though memory is still held there; False = it was in none."""
    with transaction.atomic():
        if not gpu_closing.reopen([gpu.uuid], ClosureKind.QUARANTINED, now):
            return False
        # Else the next sweep would put it back there.
        ended = [c.row for c in store.held_claims(gpu.host) if c.gpu_uuid == gpu.uuid and c.until]
        store.mark_claims_freed([row for row in ended if row is not None], now)
        text = f"{by} ended the quarantine of GPU {gpu.index}."
        _tell("GPU_QUARANTINE_OVER", text, gpu, by, now)
    return True


def _tell(kind: str, text: str, gpu: Gpu, by: str, now: datetime) -> None:
    audit.note(kind, text, by=by, now=now, subject=f"GPU {gpu.uuid}")
    events.add(kind, text, now=now, host=gpu.host, gpu_uuid=gpu.uuid)
    wake("scheduler")
    wake("live")
