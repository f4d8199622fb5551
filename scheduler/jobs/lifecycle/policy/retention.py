"""Retention of the files and records of ended jobs.

Files of jobs that wait, run or will run again are never deleted.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from monitor.facts.thresholds import threshold


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionPolicy:
    """Retention of the files and records of jobs."""

    # fmt: off
    days: float = threshold(90.0, "Files of ended jobs", unit="d", ge=1, le=3650,
        help="Retention period for logs and checkpoints.")
    disk_pct: float = threshold(20.0, "Maximum disk use", unit="%", ge=1, le=100,
        help="Share of the disk that files of ended jobs may take; the oldest are deleted first. "
             "100 = no limit.")
    least_days: float = threshold(7.0, "Minimum retention", unit="d", ge=0, le=3650,
        help="Files are kept for this time even above the maximum disk use.")
    record_days: float = threshold(365.0, "Records of ended jobs", unit="d", ge=1, le=7300,
        help="Jobs and their attempts are deleted after this time, once their files are gone. "
             "Usage and charges are kept.")
    # fmt: on

    def conflicts(self) -> dict[str, str]:
        problems = {}
        if self.least_days > self.days:
            problems["least_days"] = "it must not be longer than the retention period of the files"
        if self.record_days < self.days:
            problems["record_days"] = (
                "it must not be shorter than the retention period of the files"
            )
        return problems


@dataclass(frozen=True, slots=True)
class RetainedFiles:
    """The files of an ended job. size None = not measured yet."""

    job_id: int
    ended_at: datetime
    size: int | None = None


def select_expired(
    retained: Iterable[RetainedFiles],
    policy: RetentionPolicy,
    disk_bytes: int | None,
    now: datetime,
) -> list[RetainedFiles]:
    """Jobs whose files are to be deleted, oldest first. disk_bytes: disk size, None = unknown."""
    in_order = sorted(retained, key=lambda files: (files.ended_at, files.job_id))
    old, least = now - timedelta(days=policy.days), now - timedelta(days=policy.least_days)
    used = sum(files.size or 0 for files in in_order)
    limit = None
    if disk_bytes is not None and policy.disk_pct < 100:
        limit = disk_bytes * policy.disk_pct / 100
    expired = []
    for files in in_order:
        is_over = limit is not None and used > limit and bool(files.size)
        if files.ended_at <= old or (is_over and files.ended_at <= least):
            expired.append(files)
            used -= files.size or 0
    return expired
