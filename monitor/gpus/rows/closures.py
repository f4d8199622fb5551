"""Operator actions on a GPU: pause, resume, end its quarantine."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from django.db import transaction
from django.db.models import QuerySet

from monitor.facts.formats import fact_from
from monitor.facts.gpus import ClosureFact, ClosureKind
from monitor.gpus.rows import snapshot as snapshots
from monitor.journal.rows import audit, events
from monitor.models import Gpu, GpuClosure
from monitor.runtime.rows.database import compiled_once
from monitor.runtime.rows.wakeups import wake

# Closures of GPUs (a closed GPU gets no new jobs), and GPUs by their number.


def on(host: str) -> list[ClosureFact]:
    """Open closures of GPUs of `host`, oldest first."""
    return [
        fact_from(ClosureFact, row, kind=ClosureKind(row.kind), since=row.from_at)
        for row in _open_rows(host)
    ]


@compiled_once
def _open_rows(host: str) -> QuerySet[GpuClosure]:
    return GpuClosure.objects.filter(host=host, until_at=None).order_by("id")


def close(fact: ClosureFact, host: str) -> bool:
    """Close a GPU; False if it already has an open closure of this kind."""
    with transaction.atomic():
        _, is_new = GpuClosure.objects.get_or_create(
            gpu_uuid=fact.gpu_uuid,
            kind=fact.kind.value,
            until_at=None,
            defaults={
                "host": host,
                "reason": fact.reason,
                "by": fact.by,
                "job_ref": fact.job_ref,
                "pid": fact.pid,
                "memory_bytes": fact.memory_bytes,
                "from_at": fact.since,
            },
        )
    return is_new


def reopen(gpu_uuids: Iterable[str], kind: ClosureKind, now: datetime) -> int:
    """End the closures of this kind; returns their number."""
    rows = GpuClosure.objects.filter(gpu_uuid__in=list(gpu_uuids), kind=kind.value, until_at=None)
    return rows.update(until_at=now)


def uuids_of(texts: list[str], host: str) -> list[str]:
    """UUIDs of GPUs given as UUIDs or as numbers of this host. An unknown text stays as it is."""
    numbered = {
        str(index): uuid
        for index, uuid in Gpu.objects.filter(host=host).values_list("index", "uuid")
    }
    return list(dict.fromkeys(numbered.get(text.strip(), text.strip()) for text in texts))


REASON_LIMIT = 200


def pause(gpu: Gpu, by: str, reason: str, now: datetime) -> bool:
    """No new jobs start on the GPU; running jobs continue. False: it was already paused."""
    reason = " ".join(reason.split())[:REASON_LIMIT]
    fact = ClosureFact(gpu_uuid=gpu.uuid, kind=ClosureKind.PAUSED, since=now, by=by, reason=reason)
    with transaction.atomic():
        if not close(fact, gpu.host):
            return False
        why = f": {reason}" if reason else "."
        _tell("GPU_PAUSED", f"{by} paused GPU {gpu.index}{why}", gpu, by, now)
    return True


def resume(gpu: Gpu, by: str, now: datetime) -> bool:
    """Allow new jobs again. False: the GPU was not paused."""
    with transaction.atomic():
        if not reopen([gpu.uuid], ClosureKind.PAUSED, now):
            return False
        _tell("GPU_RESUMED", f"{by} let GPU {gpu.index} take work again.", gpu, by, now)
    return True


def release(gpu: Gpu, by: str, now: datetime) -> bool:
    """End the quarantine although memory is still in use. False: there was no quarantine."""
    with transaction.atomic():
        if not reopen([gpu.uuid], ClosureKind.QUARANTINED, now):
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
