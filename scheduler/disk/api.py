"""REST: the space of the watched folders of each host."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.http import HttpRequest
from ninja import Field, Router, Schema

from monitor.thresholds import rows as thresholds
from scheduler.disk import rows
from scheduler.disk.facts import DiskLevel
from scheduler.disk.policy import DiskPolicy
from scheduler.models import WatchedDisk

router = Router()


class DiskLine(Schema):
    host: str
    path: str
    role: str = Field(description="data, checkpoints or added (by the policy).")
    level: DiskLevel = Field(description="normal, warning, cleaning, blocked or unknown.")
    since: datetime = Field(description="Since when it has this level.")
    used_pct: float | None = Field(description="As df counts it; null: it cannot be read.")
    used_bytes: int | None
    available_bytes: int | None
    problem: str | None = Field(description="Why it cannot be read.")
    at: datetime = Field(description="Time of the reading.")


class Disks(Schema):
    warn_pct: float
    clean_pct: float
    block_pct: float
    disks: list[DiskLine]


@router.get("", response=Disks, summary="List watched folders", url_name="disks-api")
def list_disks(request: HttpRequest) -> dict[str, Any]:
    """Thresholds in percent used; 100 = never."""
    policy = thresholds.current(DiskPolicy)
    return {
        "warn_pct": policy.warn_pct,
        "clean_pct": policy.clean_pct,
        "block_pct": policy.block_pct,
        "disks": [_line(row) for row in rows.watched()],
    }


def _line(row: WatchedDisk) -> dict[str, Any]:
    return {
        "host": row.host,
        "path": row.path,
        "role": row.role,
        "level": row.level,
        "since": row.since_at,
        "used_pct": row.used_pct,
        "used_bytes": row.used_bytes,
        "available_bytes": row.available_bytes,
        "problem": row.problem or None,
        "at": row.at,
    }
