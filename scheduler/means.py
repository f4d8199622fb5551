"""Rows <-> facts: what keeps jobs within their bounds on each host, for the status page."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from django.db.models import QuerySet

from monitor.prepared import prepared
from scheduler.models import Means
from scheduler.runner.abilities import Mean

TITLES = {
    "cgroup": "A cgroup per job",
    "hiding": "Other GPUs hidden",
    "share": "Share of a GPU's time capped",
    "mps": "MPS",
    "locks": "Lock files",
    "nice": "Niceness of own jobs",
}


def record(host: str, means: Iterable[Mean], now: datetime) -> int:
    """Write down what changed; how much did. The caller holds the transaction."""
    known = {row.name: row for row in _rows(host)}
    changed = 0
    for mean in means:
        row = known.get(mean.name)
        if row is not None and (row.active, row.text) == (mean.active, mean.text):
            continue
        Means.objects.update_or_create(
            host=host,
            name=mean.name,
            defaults={"active": mean.active, "text": mean.text, "since_at": now},
        )
        changed += 1
    return changed


def is_active(host: str, name: str) -> bool:
    return any(row.name == name and row.active for row in _rows(host))


@prepared
def _rows(host: str) -> QuerySet[Means]:
    return Means.objects.filter(host=host)


def word(row: Means) -> str:
    """For its badge: niceness waits for its time."""
    if row.active:
        return "active"
    return "ready" if row.name == "nice" and row.text.startswith("+") else "off"


def listed() -> list[tuple[str, list[tuple[str, str, Means]]]]:
    """(host, [(title, word, row)]) for the status page."""
    order = list(TITLES)
    hosts: dict[str, list[Means]] = {}
    for row in Means.objects.order_by("host"):
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
