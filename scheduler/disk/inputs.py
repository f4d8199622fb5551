"""The blockers of jobs whose folders are on a full file system, as input of the planner."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

from django.conf import settings

from monitor.runtime.facts import TimedCache
from monitor.thresholds import rows as thresholds
from scheduler.disk.facts import FolderUse, FullDisk
from scheduler.disk.policy import DiskPolicy, full_blockers
from scheduler.disk.probes import space
from scheduler.disk.rows import folders as rows
from scheduler.facts.blockers import Blocker
from scheduler.facts.jobs import QueuedJob
from scheduler.runner import files

READ_FOR = timedelta(seconds=2)
# Folders of jobs rarely move to another file system.
DEVICES_FOR = timedelta(seconds=30)
PATIENCE_S, NEXT_PATIENCE_S = 0.5, 0.02
# In one query.
AT_ONCE = 500


class FullDisks:
    """Adds the blocker DiskFull to the waiting jobs of a host. Without full disks it is free."""

    def __init__(self, host: str) -> None:
        self._full: TimedCache[dict[str, FullDisk]] = TimedCache(
            lambda now: rows.full(host, thresholds.current(DiskPolicy), now), READ_FOR
        )
        self._devices: TimedCache[dict[str, str | None]] = TimedCache(lambda now: {}, DEVICES_FOR)

    def with_blockers(self, jobs: list[QueuedJob], now: datetime) -> list[QueuedJob]:
        full = self._full(now)
        if not full or not jobs:
            return jobs
        blockers = self._blockers([job.id for job in jobs], full, now)
        return [
            replace(job, waits=(*job.waits, *blockers[job.id])) if blockers.get(job.id) else job
            for job in jobs
        ]

    def of_new(self, cwd: str, now: datetime) -> tuple[Blocker, ...]:
        """The blockers of a job that is not submitted."""
        full = self._full(now)
        return self._of_folder(cwd, full, now) if full else ()

    def _blockers(
        self, ids: Collection[int], full: dict[str, FullDisk], now: datetime
    ) -> dict[int, tuple[Blocker, ...]]:
        # Equal blockers are one object, as the planner groups jobs by them.
        by_folder: dict[str, tuple[Blocker, ...]] = {}
        blockers: dict[int, tuple[Blocker, ...]] = {}
        ordered = list(ids)
        for at in range(0, len(ordered), AT_ONCE):
            for job, (cwd, is_exempt) in rows.folders_of(ordered[at : at + AT_ONCE]).items():
                if is_exempt:
                    continue
                if cwd not in by_folder:
                    by_folder[cwd] = self._of_folder(cwd, full, now)
                blockers[job] = by_folder[cwd]
        return blockers

    def _of_folder(self, cwd: str, full: dict[str, FullDisk], now: datetime) -> tuple[Blocker, ...]:
        data = Path(settings.DATA)
        checkpoints = settings.CONFIG.checkpoints or data
        folders = (
            (FolderUse.LOG, str(files.jobs_folder(data))),
            (FolderUse.CHECKPOINT, str(checkpoints)),
            (FolderUse.WORKING, cwd),
        )
        return full_blockers(
            [(use, self._device(path, now) if path else None) for use, path in folders], full
        )

    def _device(self, path: str, now: datetime) -> str | None:
        devices = self._devices(now)
        if path not in devices:
            # Folders on one dead file system must not add up.
            has_hung = None in devices.values()
            devices[path] = space.device_of(path, NEXT_PATIENCE_S if has_hung else PATIENCE_S)
        return devices[path]
