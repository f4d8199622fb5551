"""Metrics of the watched folders."""

from __future__ import annotations

from datetime import datetime

from monitor.metrics.families import Families
from scheduler.disk import rows
from scheduler.disk.facts import DiskLevel


def add_metrics(into: Families, now: datetime) -> None:
    for row in rows.watched():
        if now - row.at > rows.STALE_AFTER:
            continue
        labels = {"host": row.host, "path": row.path}
        into.gauge(
            "gpucoord_watched_disk_used_percent",
            "Use of the file system of a watched folder, as df counts it.",
            labels,
            row.used_pct,
        )
        into.gauge(
            "gpucoord_watched_disk_blocked",
            "1 while jobs wait because the file system is full.",
            labels,
            None if row.level == DiskLevel.UNKNOWN else row.level == DiskLevel.BLOCKED,
        )
