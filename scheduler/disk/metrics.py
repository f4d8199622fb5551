"""Metrics of the watched folders."""

from __future__ import annotations

from datetime import datetime

from monitor.journal.rows import counters
from monitor.pages.metrics.gpus import Families
from scheduler.disk import rows as runs
from scheduler.disk.facts import DiskLevel
from scheduler.disk.steps import folders


def add_metrics(into: Families, now: datetime) -> None:
    watched = folders.watched()
    cleaned = {(row.host, row.path): 0.0 for row in watched}
    cleaned |= {(row.host, row.subject): row.value for row in counters.of(runs.CLEANED_BYTES)}
    for (host, path), value in cleaned.items():
        labels = {"host": host, "path": path}
        help_text = "Bytes that clean-ups freed, by watched folder."
        into.counter("disk_cleaned_bytes_total", help_text, labels, value)
    for row in watched:
        if now - row.at > folders.STALE_AFTER:
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
