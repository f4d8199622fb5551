"""Part of the controller: reads the space of the watched folders, and records what changes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path

from monitor.facts.readings import Snapshot
from monitor.journal.rows import audit, events
from monitor.runtime.rows import extensions, periodic_tasks
from monitor.runtime.rows.item_isolation import ItemIsolation
from monitor.thresholds import rows as thresholds
from scheduler.disk import rows
from scheduler.disk.policy import (
    CleaningPolicy,
    DiskLevel,
    DiskPolicy,
    DiskSpace,
    WatchedFolder,
    level,
    sentence,
)
from scheduler.disk.probes import space
from scheduler.disk.steps import folders as folder_rows
from scheduler.models import CleaningRun

READ_EVERY = timedelta(seconds=10)
# Between two automatic clean-ups of a host.
CLEAN_EVERY = timedelta(minutes=15)
Read = Callable[[str], DiskSpace]


def watched_folders(
    policy: DiskPolicy, data: Path, checkpoints: Path | None
) -> tuple[WatchedFolder, ...]:
    """The data folder, the folder of checkpoints and the folders of the policy, each once."""
    folders = [WatchedFolder(str(data), "data")]
    if checkpoints is not None:
        folders.append(WatchedFolder(str(checkpoints), "checkpoints"))
    folders += [WatchedFolder(path.rstrip("/") or "/", "added") for path in policy.paths]
    return tuple({folder.path: folder for folder in reversed(folders)}.values())[::-1]


class DiskWatch:
    """A Part. The stored levels are its memory."""

    name = "disks"

    def __init__(
        self,
        host: str,
        data: Path,
        checkpoints: Path | None,
        queue: Queue,
        read: Read = space.read,
    ) -> None:
        self._host = host
        self._queue = queue
        self._data = data
        self._checkpoints = checkpoints
        self._read = read
        self._isolation = ItemIsolation(host, self.name)

    def judge(self, snapshot: Snapshot | None, now: datetime) -> Sequence[DiskLevel]:
        """Returns the level of each folder; empty if none was due."""
        if not periodic_tasks.due(f"disks {self._host[:30]}", READ_EVERY, now):
            return ()
        policy = thresholds.current(DiskPolicy)
        folders = watched_folders(policy, self._data, self._checkpoints)
        before = folder_rows.levels(self._host)

        def judge(folder: WatchedFolder) -> DiskLevel:
            return self._judge(folder, before.get(folder.path, DiskLevel.UNKNOWN), policy, now)

        judged = self._isolation.each(folders, lambda folder: folder.path, judge, now)
        folder_rows.forget_others(self._host, [folder.path for folder in folders])
        stages = [stage for _, stage in judged]
        if extensions.is_on("cleanup"):
            self._clean(stages, now)
        return stages

    def _clean(self, stages: Sequence[DiskLevel], now: datetime) -> None:
        """Start a clean-up that is due, or continue one."""
        is_due = DiskLevel.CLEANING in stages or DiskLevel.BLOCKED in stages
        if is_due and thresholds.current(CleaningPolicy).automatic:
            last = rows.last_ended(self._host)
            if last is None or last.ended_at is None or now - last.ended_at > CLEAN_EVERY:
                with suppress(rows.Busy):
                    clean(self._host, "", dry_run=False, by=audit.GPUCOORD, now=now)
        if rows.waits(self._host, now):
            self._queue(TASK, MODULE)

    def _judge(
        self, folder: WatchedFolder, before: DiskLevel, policy: DiskPolicy, now: datetime
    ) -> DiskLevel:
        reading, problem = None, ""
        try:
            reading = self._read(folder.path)
        except space.Unreadable as error:
            problem = str(error)
        stage = level(reading, policy, before)
        folder_rows.store(self._host, folder, reading, stage, problem, now)
        if reading is not None and stage is not before:
            self._tell(folder.path, reading, before, stage, policy, now)
        return stage

    def _tell(
        self,
        path: str,
        reading: DiskSpace,
        before: DiskLevel,
        stage: DiskLevel,
        policy: DiskPolicy,
        now: datetime,
    ) -> None:
        if not (stage.is_low or before.is_low):
            return
        blocks = stage is DiskLevel.BLOCKED
        events.add(
            "DISK_SPACE_LOW" if stage.is_low else "DISK_SPACE_OK",
            sentence(path, reading, stage, policy),
            now=now,
            severity="error" if blocks else "warning" if stage.is_low else "info",
            host=self._host,
            figures={"used_percent": round(reading.used_pct or 0.0, 1)},
        )


# Ask for a clean-up, or for its preview.

TASK = "clean_disks"
MODULE = "scheduler.tasks"
Queue = Callable[[str, str], None]


class UnknownFolder(ValueError):
    """No such folder is watched; the text says which are."""


def clean(
    host: str, path: str, *, dry_run: bool, by: str, now: datetime, queue: Queue | None = None
) -> CleaningRun:
    """A run for the host, which its controller starts; `queue` starts it on this host at once.

    Raises UnknownFolder or scheduler.disk.rows.Busy.
    """
    watched = [row.path for row in folder_rows.watched(host)]
    if path and path not in watched:
        raise UnknownFolder(f"{path} is not watched on {host}. Watched: {', '.join(watched)}.")
    run = rows.request(host, path, dry_run=dry_run, by=by, now=now)
    if queue is not None:
        queue(TASK, MODULE)
    return run
