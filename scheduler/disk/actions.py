"""Step: one clean-up, or its preview, for a bounded time; the rest is done by the next step."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path

from django.db import transaction

from monitor.thresholds import rows as thresholds
from scheduler.disk import policy as rules
from scheduler.disk import probes, steps
from scheduler.disk.policy import (
    Candidate,
    CleaningPolicy,
    CleanResult,
    CleanRoot,
    CleanRule,
    DiskPolicy,
    DiskSpace,
    FileEntry,
    WatchedFolder,
)
from scheduler.disk.steps import watched_folders
from scheduler.models import CleaningRun
from scheduler.runner import accounts
from scheduler.runner import files as copying

Copy = Callable[[int, Path], None]
CHECKPOINT_FOLDER = "checkpoint"
SAVE_EVERY_S = 5.0
# Files of which the copy failed, before a clean-up gives up.
MOST_FAILED_COPIES = 5


@dataclass
class Cleaner:
    """`step(now)` works for at most `seconds` on the next run of the host."""

    host: str
    data: Path
    checkpoints: Path | None = None
    copy: Copy = copying.copy
    read: Callable[[str], DiskSpace] = probes.read
    seconds: float = 45.0
    clock: Callable[[], float] = time.monotonic
    _failed: int = field(default=0, init=False)

    def step(self, now: datetime) -> CleaningRun | None:
        """The run that was worked on; None = none waits."""
        run = steps.take(self.host, now)
        if run is None:
            return None
        until = self.clock() + self.seconds
        try:
            is_done = self._work(run, until, now)
        except Exception as error:
            steps.add_problem(run, f"It failed: {error}")
            steps.save_progress(run, steps.State.FAILED, now)
            raise
        state = steps.State.DONE if is_done else steps.State.WAITING
        steps.save_progress(run, state, now)
        return run

    def _work(self, run: CleaningRun, until: float, now: datetime) -> bool:
        """False: the time is over before the end."""
        disk, policy = thresholds.current(DiskPolicy), thresholds.current(CleaningPolicy)
        folders = watched_folders(disk, self.data, self.checkpoints)
        chosen = [folder for folder in folders if run.path in ("", folder.path)]
        if not chosen:
            steps.add_problem(run, f"{run.path} is not watched on this host.")
        goal = min(policy.until_pct, disk.clean_pct)
        before = run.candidates, run.candidate_bytes
        run.candidates = run.candidate_bytes = 0
        total: list[Candidate] = []
        wanted: list[Candidate] = []
        is_done = True
        for folder, reading in self._readings(chosen, run):
            ordered = self._candidates(reading, policy, run, until, now)
            total += ordered
            wanted += rules.needed(ordered, reading, goal)
            if not run.dry_run:
                is_done &= self._clean(run, folder.path, ordered, goal, policy, until, now)
        steps.preview(run, total, wanted)
        if before[0] > run.candidates:
            # A later step of the same run finds only what the earlier ones left.
            run.candidates, run.candidate_bytes = before
        return is_done

    def _readings(
        self, folders: Sequence[WatchedFolder], run: CleaningRun
    ) -> list[tuple[WatchedFolder, DiskSpace]]:
        """Each file system once."""
        readings: dict[str, tuple[WatchedFolder, DiskSpace]] = {}
        for folder in folders:
            try:
                reading = self.read(folder.path)
            except probes.Unreadable as error:
                steps.add_problem(run, f"{folder.path}: {error}")
                continue
            readings.setdefault(reading.device, (folder, reading))
        return list(readings.values())

    def roots(self, policy: CleaningPolicy) -> tuple[CleanRoot, ...]:
        """The folders of jobs, and those that operators have listed."""
        logs, *others = accounts.job_file_roots(self.data, self.checkpoints)
        own = [CleanRoot(str(logs.resolve()), CleanRule.LOG, of_jobs=True)]
        own += [
            CleanRoot(str(path.resolve()), CleanRule.CHECKPOINT, CHECKPOINT_FOLDER, of_jobs=True)
            for path in dict.fromkeys((logs, *others))
        ]
        return (*own, *policy.roots())

    def _own_folders(self) -> tuple[str, ...]:
        """Folders of gpucoord. Below them, only the rules for files of ended jobs delete files.

        A listed folder may be above them; the secret key is in the data folder.
        """
        roots = accounts.job_file_roots(self.data, self.checkpoints)
        return tuple(f"{path.resolve()}/" for path in (self.data, *roots))

    def _candidates(
        self,
        reading: DiskSpace,
        policy: CleaningPolicy,
        run: CleaningRun,
        until: float,
        now: datetime,
    ) -> list[Candidate]:
        """On the file system of the reading. Without a target, nothing that needs a copy."""
        files: dict[CleanRoot, list[FileEntry]] = {}
        own = self._own_folders()
        for root in self.roots(policy):
            if probes.device_of(root.path) != reading.device:
                continue
            try:
                entries = probes.walk(root.path, until)
                files[root] = [f for f in entries if root.of_jobs or not f.path.startswith(own)]
            except probes.UnusableFolder as error:
                if not root.of_jobs:
                    steps.add_problem(run, str(error))
        if self.clock() >= until:
            steps.add_problem(run, "There was no time to look through all folders.")
        unfinished = steps.unfinished_jobs()
        ordered = rules.candidates(files, policy, now, unfinished)
        problem = self._target_problem(policy, reading)
        if problem is None:
            return ordered
        if any(candidate.needs_copy for candidate in ordered):
            steps.add_problem(run, problem)
        return [candidate for candidate in ordered if not candidate.needs_copy]

    def _target_problem(self, policy: CleaningPolicy, reading: DiskSpace) -> str | None:
        """Why files cannot be copied before they are deleted."""
        target = policy.sync_target
        if not target:
            return "Checkpoints and data stay: no sync target is set."
        if not Path(target).is_dir():
            return f"Checkpoints and data stay: the sync target {target} is not there."
        if probes.device_of(target) == reading.device:
            return f"Checkpoints and data stay: {target} is on the same file system."
        return None

    def _clean(
        self,
        run: CleaningRun,
        folder: str,
        ordered: Sequence[Candidate],
        goal: float,
        policy: CleaningPolicy,
        until: float,
        now: datetime,
    ) -> bool:
        saved_at, settled = self.clock(), _settled(run)
        for candidate in ordered:
            if candidate.file.shown_path in settled:
                continue
            used = self.read(folder).used_pct
            if used is None or used < goal or self._failed >= MOST_FAILED_COPIES:
                return True
            if self.clock() >= until:
                return False
            result = self._delete(run, candidate, folder, policy, now)
            steps.add_result(run, candidate, result)
            if self.clock() - saved_at >= SAVE_EVERY_S:
                saved_at = self.clock()
                steps.save_progress(run, steps.State.RUNNING, now)
        return True

    def _delete(
        self,
        run: CleaningRun,
        candidate: Candidate,
        folder: str,
        policy: CleaningPolicy,
        now: datetime,
    ) -> CleanResult:
        secure = partial(self._secure, run, candidate, policy)

        def record(unlink: Callable[[], None]) -> None:
            # A file that cannot be deleted is not recorded.
            with transaction.atomic():
                steps.record_deletion(run, candidate, folder, now)
                unlink()

        return probes.delete(candidate.file, secure, record)

    def _secure(
        self, run: CleaningRun, candidate: Candidate, policy: CleaningPolicy, handle: int
    ) -> bool:
        """Copy the file if it needs that; whether the copy is proved to be good."""
        if not candidate.needs_copy:
            return True
        target = copy_path(policy.sync_target, self.host, candidate.file)
        try:
            copying.make_folders(Path(policy.sync_target), target.parent)
            self.copy(handle, target)
        except copying.CopyFailed as error:
            self._failed += 1
            steps.add_problem(run, f"{candidate.file.path} was not copied: {error}")
            return False
        if probes.is_copy(handle, target):
            return True
        self._failed += 1
        steps.add_problem(run, f"{candidate.file.path}: the copy {target} differs from it.")
        return False


def copy_path(target: str, host: str, file: FileEntry) -> Path:
    """Where the copy of a file is: below a folder of the host, by its whole path."""
    return Path(target, host.replace("/", "_"), *Path(file.path).parts[1:])


def _settled(run: CleaningRun) -> frozenset[str]:
    """Files that an earlier step of the run has spared."""
    listed: Sequence[Mapping[str, str]] = run.listed
    return frozenset(line["path"] for line in listed)
