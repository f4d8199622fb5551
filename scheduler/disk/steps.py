"""Clean-ups and their previews, and the part of the controller that reads the space of folders."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

from django.conf import settings
from django.db import transaction
from django.db.models import Model, Q, QuerySet

from monitor.facts.input_rules import escaped
from monitor.facts.readings import Snapshot
from monitor.journal.rows import audit, counters, events
from monitor.runtime.policy import TimedCache
from monitor.runtime.rows import extensions, periodic_tasks
from monitor.runtime.rows.database import compiled_once, update_rows
from monitor.runtime.rows.item_isolation import ItemIsolation
from monitor.thresholds import rows as thresholds
from monitor.usage.rows.rollups import RetentionPeriods
from scheduler.disk import probes
from scheduler.disk.policy import (
    Candidate,
    CleaningPolicy,
    CleanResult,
    DiskLevel,
    DiskPolicy,
    DiskSpace,
    FolderUse,
    FullDisk,
    WatchedFolder,
    floor_bytes,
    full_blockers,
    level,
    sentence,
)
from scheduler.facts.blockers import Blocker
from scheduler.facts.jobs import JobState, QueuedJob
from scheduler.models import CleaningRun, Job, WatchedDisk
from scheduler.runner import files

State = CleaningRun.State
# A run that has not been heard of for longer was killed; it is taken up again.
DEAD_AFTER = timedelta(minutes=3)
MOST_LISTED = 500
MOST_PROBLEMS = 20
KEEP = timedelta(days=90)
CLEANED_BYTES = "disk cleaned"


class Busy(Exception):
    """A clean-up of this host is under way; `run` is it."""

    def __init__(self, run: CleaningRun) -> None:
        super().__init__(f"Clean-up {run.pk} of {run.host} is under way.")
        self.run = run


@transaction.atomic
def request(host: str, path: str, *, dry_run: bool, by: str, now: datetime) -> CleaningRun:
    """A new run that waits. Raises Busy."""
    busy = CleaningRun.objects.filter(host=host, state__in=(State.WAITING, State.RUNNING)).first()
    if busy is not None:
        raise Busy(busy)
    run = CleaningRun.objects.create(
        host=host, path=path, dry_run=dry_run, asked_by=by, asked_at=now, at=now
    )
    if not dry_run:
        text = f"Asked for a clean-up of {path or 'all watched folders'} on {host}."
        audit.note("DISK_CLEANING_ASKED", text, by=by, now=now, subject=f"clean-up {run.pk}")
    return run


def take(host: str, now: datetime) -> CleaningRun | None:
    """The next run to work on, marked as running; None = there is none."""
    run = _open(host, now).order_by("pk").first()
    if run is None:
        return None
    taken = _open(host, now).filter(pk=run.pk).update(state=State.RUNNING, at=now)
    run.state, run.at = State.RUNNING, now
    return run if taken else None


def waits(host: str, now: datetime) -> bool:
    return any(row.state == State.WAITING or row.at < now - DEAD_AFTER for row in _unfinished(host))


@compiled_once
def _unfinished(host: str) -> QuerySet[CleaningRun]:
    rows = CleaningRun.objects.filter(host=host, state__in=(State.WAITING, State.RUNNING))
    return rows.only("state", "at")


def _open(host: str, now: datetime) -> QuerySet[CleaningRun]:
    is_dead = Q(state=State.RUNNING, at__lt=now - DEAD_AFTER)
    return CleaningRun.objects.filter(Q(state=State.WAITING) | is_dead, host=host)


def last_ended(host: str) -> CleaningRun | None:
    """The newest clean-up that was no preview."""
    ended = CleaningRun.objects.filter(host=host, dry_run=False, ended_at__isnull=False)
    return ended.order_by("-pk").first()


def recent(most: int = 10) -> list[CleaningRun]:
    return list(CleaningRun.objects.order_by("-pk").defer("listed")[:most])


def unfinished_jobs() -> frozenset[str]:
    """Numbers of jobs that have not ended."""
    ids = Job.objects.exclude(state=JobState.FINISHED.value).values_list("pk", flat=True)
    return frozenset(map(str, ids))


def preview(run: CleaningRun, all_files: Sequence[Candidate], chosen: Iterable[Candidate]) -> None:
    """Store the candidates; `chosen` are those that a clean-up would delete now."""
    deleted = list(chosen)
    run.candidates = len(all_files)
    run.candidate_bytes = sum(candidate.file.disk_bytes for candidate in all_files)
    if run.dry_run:
        run.freed_bytes = sum(candidate.file.disk_bytes for candidate in deleted)
        run.figures = {"would be deleted": len(deleted)} if deleted else {}
        run.listed = [_line(candidate, "would be deleted") for candidate in deleted[:MOST_LISTED]]
    run.save()


def _line(candidate: Candidate, result: str) -> dict[str, object]:
    return {
        "rule": candidate.rule.value,
        "path": candidate.file.shown_path,
        "bytes": candidate.file.disk_bytes,
        "modified": candidate.file.mtime_ns / 1e9,
        "copied": candidate.needs_copy,
        "result": result,
    }


def add_result(run: CleaningRun, candidate: Candidate, result: CleanResult) -> None:
    """Count the result of a file in the run, which is saved by `save_progress`."""
    figures = Counter(run.figures)
    figures[result.value] += 1
    run.figures = dict(figures)
    if result is CleanResult.DELETED:
        run.freed_bytes += candidate.file.disk_bytes
    if len(run.listed) < MOST_LISTED:
        run.listed.append(_line(candidate, result.value))


def record_deletion(run: CleaningRun, candidate: Candidate, folder: str, now: datetime) -> None:
    """One entry of the audit for the file, and the metric, in the transaction of the deletion."""
    file = candidate.file
    after = {"bytes": file.disk_bytes, "size": file.size, "copied": candidate.needs_copy}
    audit.note(
        "FILE_CLEANED",
        f"Deleted {file.shown_path} ({candidate.rule.value}).",
        by=run.asked_by,
        now=now,
        subject=f"clean-up {run.pk}",
        after=after,
    )
    counters.add(CLEANED_BYTES, folder[:150], file.disk_bytes)


def add_problem(run: CleaningRun, problem: str) -> None:
    """The text may name files whose names no database takes."""
    text = escaped(problem)
    if text not in run.problems and len(run.problems) < MOST_PROBLEMS:
        run.problems.append(text)


def save_progress(run: CleaningRun, state: State, now: datetime) -> None:
    run.state, run.at = state, now
    if state in (State.DONE, State.FAILED):
        run.ended_at = now
    run.save()


def too_old(_keep: RetentionPeriods, now: datetime) -> Iterator[QuerySet[Model]]:
    """For pruning. The audit keeps what was deleted."""
    yield CleaningRun.objects.filter(ended_at__lt=now - KEEP)


# Watched folders of each host: their rows, and the blockers of jobs on a full file system.


# Older readings block nothing: the controller is gone, or the folder is not watched any more.
STALE_AFTER = timedelta(minutes=2)
# An operator's job with this tag starts on a full file system, to clean it.
EXEMPT_TAG = "cleanup"
READ_FOR = timedelta(seconds=2)
# Folders of jobs rarely move to another file system.
DEVICES_FOR = timedelta(seconds=30)
PATIENCE_S, NEXT_PATIENCE_S, MOST_HUNG = 0.5, 0.02, 5
# In one query.
AT_ONCE = 500


def watched_disks(host: str | None = None) -> list[WatchedDisk]:
    """The folders of `host` (None = any)."""
    return _watched_on(host) if host else _all_watched()


@compiled_once
def _all_watched() -> QuerySet[WatchedDisk]:
    return WatchedDisk.objects.order_by("host", "path")


def levels(host: str) -> dict[str, DiskLevel]:
    """The stored level of each folder."""
    return {row.path: DiskLevel(row.level) for row in _watched_on(host)}


@compiled_once
def _watched_on(host: str) -> QuerySet[WatchedDisk]:
    return WatchedDisk.objects.filter(host=host).order_by("path")


def space_of(row: WatchedDisk) -> DiskSpace | None:
    """The last reading; None = it could not be read."""
    if row.used_bytes is None or row.available_bytes is None:
        return None
    return DiskSpace(
        device=row.device, used_bytes=row.used_bytes, available_bytes=row.available_bytes
    )


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
    row = next((row for row in _watched_on(host) if row.path == folder.path), None)
    if row is None:
        first = values | {"level": level.value, "since_at": now}
        WatchedDisk.objects.get_or_create(host=host, path=folder.path, defaults=first)
        return
    if row.level != level.value:
        values |= {"level": level.value, "since_at": now}
    update_rows(WatchedDisk, {"pk": row.pk}, **values)


def forget_others(host: str, paths: Collection[str]) -> None:
    """Remove folders that are watched no more."""
    if any(row.path not in paths for row in _watched_on(host)):
        WatchedDisk.objects.filter(host=host).exclude(path__in=paths).delete()


def full_disks(host: str, policy: DiskPolicy, now: datetime) -> dict[str, FullDisk]:
    """The file systems of a host on which no job may write more, by device."""
    rows = WatchedDisk.objects.filter(
        host=host, level=DiskLevel.BLOCKED.value, at__gt=now - STALE_AFTER
    )
    by_device: dict[str, FullDisk] = {}
    for row in rows.order_by("path"):
        if row.used_pct is not None and row.device not in by_device:
            by_device[row.device] = FullDisk(
                path=row.path,
                device=row.device,
                used_pct=row.used_pct,
                limit_pct=policy.block_pct,
                limit_bytes=floor_bytes((row.used_bytes or 0) + (row.available_bytes or 0), policy),
                available_bytes=row.available_bytes or 0,
            )
    return by_device


def folders_of(ids: Collection[int]) -> Mapping[int, tuple[str, bool]]:
    """Working folder of each waiting job ("" = that of its account), and whether it is exempt."""
    rows = Job.objects.filter(pk__in=ids).values_list("pk", "cwd", "tags", "owner__is_staff")
    return {pk: (cwd, is_staff and EXEMPT_TAG in tags) for pk, cwd, tags, is_staff in rows}


class FullDisks:
    """Adds the blocker DiskFull to the waiting jobs of a host. Without full disks it is free."""

    def __init__(self, host: str) -> None:
        self._full: TimedCache[dict[str, FullDisk]] = TimedCache(
            lambda now: full_disks(host, thresholds.current(DiskPolicy), now), READ_FOR
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
            for job, (cwd, is_exempt) in folders_of(ordered[at : at + AT_ONCE]).items():
                if is_exempt:
                    continue
                if cwd not in by_folder:
                    by_folder[cwd] = self._of_folder(cwd, full, now)
                blockers[job] = by_folder[cwd]
        return blockers

    def _of_folder(self, cwd: str, full: dict[str, FullDisk], now: datetime) -> tuple[Blocker, ...]:
        folders = {
            FolderUse.WORKING: cwd,
            FolderUse.CHECKPOINT: str(settings.CONFIG.checkpoints or ""),
            FolderUse.LOG: str(files.jobs_folder(Path(settings.DATA))),
        }
        return full_blockers(
            [(use, self._device(path, now) if path else None) for use, path in folders.items()],
            full,
        )

    def _device(self, path: str, now: datetime) -> str | None:
        devices = self._devices(now)
        if path not in devices:
            # Folders on one dead file system must not add up; each may keep a thread for long.
            hung = sum(device is None for device in devices.values())
            if hung >= MOST_HUNG:
                return None
            devices[path] = probes.device_of(path, NEXT_PATIENCE_S if hung else PATIENCE_S)
        return devices[path]


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
        read: Read = probes.read,
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
        before = levels(self._host)

        def judge(folder: WatchedFolder) -> DiskLevel:
            return self._judge(folder, before.get(folder.path, DiskLevel.UNKNOWN), policy, now)

        judged = self._isolation.each(folders, lambda folder: folder.path, judge, now)
        forget_others(self._host, [folder.path for folder in folders])
        stages = [stage for _, stage in judged]
        if extensions.is_on("cleanup"):
            self._clean(stages, now)
        return stages

    def _clean(self, stages: Sequence[DiskLevel], now: datetime) -> None:
        """Start a clean-up that is due, or continue one."""
        is_due = DiskLevel.CLEANING in stages or DiskLevel.BLOCKED in stages
        if is_due and thresholds.current(CleaningPolicy).automatic:
            last = last_ended(self._host)
            if last is None or last.ended_at is None or now - last.ended_at > CLEAN_EVERY:
                with suppress(Busy):
                    clean(self._host, "", dry_run=False, by=audit.GPUCOORD, now=now)
        if waits(self._host, now):
            self._queue(TASK, MODULE)

    def _judge(
        self, folder: WatchedFolder, before: DiskLevel, policy: DiskPolicy, now: datetime
    ) -> DiskLevel:
        reading, problem = None, ""
        try:
            reading = self._read(folder.path)
        except probes.Unreadable as error:
            problem = str(error)
        stage = level(reading, policy, before)
        store(self._host, folder, reading, stage, problem, now)
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

    Raises UnknownFolder or scheduler.disk.steps.Busy.
    """
    watched = [row.path for row in watched_disks(host)]
    if path and path not in watched:
        raise UnknownFolder(f"{path} is not watched on {host}. Watched: {', '.join(watched)}.")
    run = request(host, path, dry_run=dry_run, by=by, now=now)
    if queue is not None:
        queue(TASK, MODULE)
    return run
