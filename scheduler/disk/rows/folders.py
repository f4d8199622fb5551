"""Rows <-> facts: the space of watched folders of each host."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime, timedelta

from scheduler.disk.facts import DiskLevel, DiskSpace, FullDisk, WatchedFolder
from scheduler.disk.policy import DiskPolicy
from scheduler.models import Job, WatchedDisk

# Older readings block nothing: the controller is gone, or the folder is not watched any more.
STALE_AFTER = timedelta(minutes=2)
# An operator's job with this tag starts on a full file system, to clean it.
EXEMPT_TAG = "cleanup"


def watched(host: str | None = None) -> list[WatchedDisk]:
    """The folders of `host` (None = any)."""
    rows = WatchedDisk.objects.order_by("host", "path")
    return list(rows if host is None else rows.filter(host=host))


def levels(host: str) -> dict[str, DiskLevel]:
    """The stored level of each folder."""
    rows = WatchedDisk.objects.filter(host=host).values_list("path", "level")
    return {path: DiskLevel(level) for path, level in rows}


def store(
    host: str,
    folder: WatchedFolder,
    space: DiskSpace | None,
    level: DiskLevel,
    problem: str,
    now: datetime,
) -> None:
    """Store a reading; `since_at` changes with the level only."""
    values = {
        "role": folder.role,
        "device": space.device if space else "",
        "used_bytes": space.used_bytes if space else None,
        "available_bytes": space.available_bytes if space else None,
        "at": now,
        "problem": problem,
    }
    row, is_new = WatchedDisk.objects.get_or_create(
        host=host, path=folder.path, defaults=values | {"level": level.value, "since_at": now}
    )
    if is_new:
        return
    if row.level != level.value:
        values |= {"level": level.value, "since_at": now}
    WatchedDisk.objects.filter(pk=row.pk).update(**values)


def forget_others(host: str, paths: Collection[str]) -> None:
    """Remove folders that are watched no more."""
    WatchedDisk.objects.filter(host=host).exclude(path__in=paths).delete()


def full(host: str, policy: DiskPolicy, now: datetime) -> dict[str, FullDisk]:
    """The file systems of a host on which no job may write more, by device."""
    rows = WatchedDisk.objects.filter(
        host=host, level=DiskLevel.BLOCKED.value, at__gt=now - STALE_AFTER
    )
    full_disks: dict[str, FullDisk] = {}
    for row in rows.order_by("path"):
        if row.used_pct is not None and row.device not in full_disks:
            full_disks[row.device] = FullDisk(
                path=row.path,
                device=row.device,
                used_pct=row.used_pct,
                limit_pct=policy.block_pct,
                available_bytes=row.available_bytes or 0,
            )
    return full_disks


def folders_of(ids: Collection[int]) -> Mapping[int, tuple[str, bool]]:
    """Working folder of each waiting job ("" = that of its account), and whether it is exempt."""
    rows = Job.objects.filter(pk__in=ids).values_list("pk", "cwd", "tags", "owner__is_staff")
    return {pk: (cwd, is_staff and EXEMPT_TAG in tags) for pk, cwd, tags, is_staff in rows}
