"""Closures of GPUs (a closed GPU gets no new jobs), and GPUs by their number."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from django.db import transaction
from django.db.models import QuerySet

from monitor.facts.gpu_states import ClosureFact, ClosureKind
from monitor.facts.records import fact_from
from monitor.models import Gpu, GpuClosure
from monitor.runtime.rows.prepared import compiled_once


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
