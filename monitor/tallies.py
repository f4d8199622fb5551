"""Rows: counts that outlive what they count, as Prometheus wants them."""

from __future__ import annotations

from collections.abc import Mapping

from django.conf import settings
from django.db import connection
from django.db.models import QuerySet

from monitor.health import Xid
from monitor.models import Tally
from monitor.prepared import prepared

# What is counted; `subject` is the event's kind, or the jobs' outcome, or the
# GPU and number of an XID, or a channel's service and what became of a try.
EVENTS = "events"
FINISHED_JOBS = "finished jobs"
XIDS = "xids"
# Every event counts, so this is done often, and Django has no words for adding to what is there.
_ADD = """
    INSERT INTO monitor_tally (name, host, subject, value) VALUES (%s, %s, %s, %s)
    ON CONFLICT (name, host, subject) DO UPDATE SET value = monitor_tally.value + excluded.value
"""
ALERTS = "alerts"


def add(name: str, subject: str = "", by: float = 1) -> None:
    """Count something that happened on this host."""
    with connection.cursor() as cursor:
        cursor.execute(_ADD, [name, settings.CONFIG.node, subject, by])


def add_all(host: str, grown: Mapping[tuple[str, str], float]) -> None:
    """{(name, subject): by}, which only one process at a time counts; in two statements."""
    if not grown:
        return
    rows = Tally.objects.filter(host=host, name__in={name for name, _ in grown})
    before = {(n, s): value for n, s, value in rows.values_list("name", "subject", "value")}
    Tally.objects.bulk_create(
        [
            Tally(name=n, host=host, subject=s, value=before.get((n, s), 0.0) + by)
            for (n, s), by in grown.items()
            if by or (n, s) not in before
        ],
        update_conflicts=True,
        unique_fields=("name", "host", "subject"),
        update_fields=("value",),
    )


@prepared
def of(name: str) -> QuerySet[Tally]:
    """The counts of each host and subject."""
    return Tally.objects.filter(name=name).order_by("host", "subject")


def add_xid(xid: Xid) -> None:
    """Events tell only some of a flood of XIDs; here each counts."""
    add(XIDS, f"{xid.gpu_uuid} {xid.code}")


def xids() -> dict[str, dict[int, float]]:
    """{GPU: {code: how many}}."""
    found: dict[str, dict[int, float]] = {}
    for row in of(XIDS):
        uuid, _, code = row.subject.rpartition(" ")
        codes = found.setdefault(uuid, {})
        codes[int(code)] = codes.get(int(code), 0) + row.value
    return found
