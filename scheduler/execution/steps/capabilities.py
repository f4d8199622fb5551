"""Rows <-> facts: the isolation features of each host, for the status page."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from django.db.models import QuerySet

from monitor.runtime.rows.database import prepared
from scheduler.execution.probes.capabilities import Capability
from scheduler.models import HostCapability

TITLES = {
    "cgroup": "A cgroup per job",
    "hiding": "Other GPUs hidden",
    "share": "Share of a GPU's time capped",
    "mps": "MPS",
    "locks": "Lock files",
    "nice": "Niceness of own jobs",
}


def record(host: str, means: Iterable[Capability], now: datetime) -> int:
    """Store changes; returns their number. The caller opens the transaction."""
    stored = {row.name: row for row in _rows(host)}
    changed = 0
    for mean in means:
        row = stored.get(mean.name)
        if row is not None and (row.active, row.text) == (mean.active, mean.text):
            continue
        HostCapability.objects.update_or_create(
            host=host,
            name=mean.name,
            defaults={"active": mean.active, "text": mean.text, "since_at": now},
        )
        changed += 1
    return changed


def is_active(host: str, name: str) -> bool:
    return any(row.name == name and row.active for row in _rows(host))


@prepared
def _rows(host: str) -> QuerySet[HostCapability]:
    return HostCapability.objects.filter(host=host)


def word(row: HostCapability) -> str:
    """For its badge: niceness waits for its time."""
    if row.active:
        return "active"
    return "ready" if row.name == "nice" and row.text.startswith("+") else "off"


def listed() -> list[tuple[str, list[tuple[str, str, HostCapability]]]]:
    """(host, [(title, word, row)]) for the status page."""
    order = list(TITLES)
    hosts: dict[str, list[HostCapability]] = {}
    for row in HostCapability.objects.order_by("host"):
        hosts.setdefault(row.host, []).append(row)
    return [
        (
            host,
            [
                (TITLES[row.name], word(row), row)
                for row in sorted(rows, key=lambda row: order.index(row.name))
            ],
        )
        for host, rows in hosts.items()
    ]
