"""Rows: persistent counters for Prometheus; unlike row counts they survive pruning."""

from __future__ import annotations

from collections.abc import Mapping

from django.conf import settings
from django.db import connection
from django.db.models import QuerySet

from monitor.facts.gpus import Xid
from monitor.journal.facts import EvictionReason
from monitor.models import Counter
from monitor.runtime.rows.database import compiled_once, upsert_rows

# Names of the counters; `subject` is the event's kind, or the jobs' outcome, or the
# GPU and number of an XID, or a channel's service and what became of a try.
EVENTS = "events"
FINISHED_JOBS = "finished jobs"
XIDS = "xids"
# Subject: the reason and the GPU.
EVICTIONS = "evictions"
# This runs for every event. Django's ORM has no insert-or-add in one statement.
_ADD = """
    INSERT INTO monitor_counter (name, host, subject, value) VALUES (%s, %s, %s, %s)
    ON CONFLICT (name, host, subject) DO UPDATE SET value = monitor_counter.value + excluded.value
"""
ALERTS = "alerts"


def add(name: str, subject: str = "", by: float = 1) -> None:
    """Count an event on this host."""
    with connection.cursor() as cursor:
        cursor.execute(_ADD, [name, settings.CONFIG.node, subject, by])


def add_all(host: str, grown: Mapping[tuple[str, str], float]) -> None:
    """Add {(name, subject): by} in two statements.

    Only one process may count these names at a time.
    """
    if not grown:
        return
    rows = _on(host, *sorted({name for name, _ in grown}))
    before = {(row.name, row.subject): row.value for row in rows}
    changed = [
        Counter(name=n, host=host, subject=s, value=before.get((n, s), 0.0) + by)
        for (n, s), by in grown.items()
        if by or (n, s) not in before
    ]
    upsert_rows(changed, ("name", "host", "subject"), ("value",))


@compiled_once
def _on(host: str, *names: str) -> QuerySet[Counter]:
    return Counter.objects.filter(host=host, name__in=names)


@compiled_once
def of(*names: str) -> QuerySet[Counter]:
    """The counts of each host and subject."""
    return Counter.objects.filter(name__in=names).order_by("host", "subject", "name")


def add_xid(xid: Xid) -> None:
    """Count every XID; only some XIDs of a burst become events."""
    add(XIDS, f"{xid.gpu_uuid} {xid.code}")


def add_eviction(reason: EvictionReason, gpu_uuid: str) -> None:
    """A running job or model had to leave this GPU."""
    add(EVICTIONS, f"{reason.value} {gpu_uuid}")


def evictions() -> dict[tuple[str, str, EvictionReason], float]:
    """{(host, GPU, reason): number of jobs and models that had to leave}.

    Rows of older versions have the code of the request, such as OwnerPresent; they count too.
    """
    counts: dict[tuple[str, str, EvictionReason], float] = {}
    for row in of(EVICTIONS):
        code, _, uuid = row.subject.partition(" ")
        key = row.host, uuid, EvictionReason.of_code(code)
        counts[key] = counts.get(key, 0.0) + row.value
    return counts


def xids() -> dict[str, dict[int, float]]:
    """{GPU: {code: how many}}."""
    counts: dict[str, dict[int, float]] = {}
    for row in of(XIDS):
        uuid, _, code = row.subject.rpartition(" ")
        codes = counts.setdefault(uuid, {})
        codes[int(code)] = codes.get(int(code), 0) + row.value
    return counts
