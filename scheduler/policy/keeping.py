"""Policy: which ended jobs' files go.

Files of a job that waits, runs or is to run again are never touched.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepingPolicy:
    """What is kept of jobs on the disk."""

    days: float = field(
        default=90.0,
        metadata={
            "label": "Files of ended jobs",
            "help": "So long their logs and checkpoints are kept.",
            "unit": "d",
            "least": 1,
            "most": 3650,
        },
    )
    disk_pct: float = field(
        default=20.0,
        metadata={
            "label": "… while they take less than",
            "help": "Of the disk that they are on; else the oldest go sooner. 100 = no limit.",
            "unit": "%",
            "least": 1,
            "most": 100,
        },
    )
    least_days: float = field(
        default=7.0,
        metadata={
            "label": "… but at least",
            "help": "However much they take.",
            "unit": "d",
            "least": 0,
            "most": 3650,
        },
    )

    def conflicts(self) -> dict[str, str]:
        if self.least_days <= self.days:
            return {}
        return {"least_days": "it must not be longer than they are kept at all."}


@dataclass(frozen=True, slots=True)
class Kept:
    """The files of an ended job. size None = not measured yet."""

    job_id: int
    ended_at: datetime
    size: int | None = None


def to_clear(
    kept: Iterable[Kept], policy: KeepingPolicy, disk_bytes: int | None, now: datetime
) -> list[Kept]:
    """Whose files go, the longest ended first. disk_bytes: the whole disk, None = unknown."""
    in_order = sorted(kept, key=lambda one: (one.ended_at, one.job_id))
    old, least = now - timedelta(days=policy.days), now - timedelta(days=policy.least_days)
    there = sum(one.size or 0 for one in in_order)
    most = None
    if disk_bytes is not None and policy.disk_pct < 100:
        most = disk_bytes * policy.disk_pct / 100
    found = []
    for one in in_order:
        too_much = most is not None and there > most and bool(one.size) and one.ended_at <= least
        if one.ended_at <= old or too_much:
            found.append(one)
            there -= one.size or 0
    return found
