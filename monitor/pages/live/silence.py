"""Hosts without contact on live pages: their last readings are shown as such."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from monitor.facts.readings import Snapshot
from monitor.gpus.hosts.policy import SILENT_AFTER

NO_HOSTS: frozenset[str] = frozenset()


def silent_hosts(snapshots: Sequence[Snapshot], now: datetime) -> frozenset[str]:
    """Hosts without contact while others have it. If none has it, the whole page is stale."""
    silent = frozenset(s.host.name for s in snapshots if now - s.at > SILENT_AFTER)
    return silent if len(silent) < len(snapshots) else NO_HOSTS


def oldest_in_contact(snapshots: Sequence[Snapshot], silent: frozenset[str]) -> float | None:
    """The time of the oldest reading (epoch s) of the other hosts. None: there is none."""
    times = (s.at.timestamp() for s in snapshots if s.host.name not in silent)
    return min(times, default=None)
