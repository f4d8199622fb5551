"""Policy: which files a clean-up may delete, in which order."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from monitor.facts.thresholds import percent, threshold
from scheduler.disk.facts import Candidate, CleanRoot, CleanRule, DiskSpace, FileEntry

ORDER = tuple(CleanRule)
DATABASE_AGE = timedelta(days=1)
# Stale checkpoints and data are older than this. Of each folder, this many checkpoints are kept.
CHECKPOINT_AGE = DATA_AGE = timedelta(days=7)
CHECKPOINTS_KEPT = 3
DATABASE_ENDINGS = (".db", ".sqlite", ".sqlite3")
# Folders of the system, and of all users together, are never cleaned.
PROTECTED = (
    "/", "/bin", "/boot", "/dev", "/etc", "/home", "/lib", "/lib64", "/opt", "/proc", "/root",
    "/run", "/sbin", "/srv", "/sys", "/usr", "/var",
)  # fmt: skip
PROTECTED_BELOW = (
    "/bin", "/boot", "/dev", "/etc", "/lib", "/lib64", "/proc", "/root", "/run", "/sbin", "/sys",
    "/usr",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class CleaningPolicy:
    """Clean-up of full file systems: which files may be deleted, oldest first."""

    # fmt: off
    automatic: bool = threshold(False, "Clean up automatically",
        "A clean-up starts by itself when one is due. Look at the preview on /disks/ first.")
    until_pct: float = percent(60.0, "Clean until below",
        "A clean-up deletes nothing on a file system below this use.")
    log_days: float = threshold(7.0, "Old logs: older than", unit="d", ge=1, le=3650,
        help="Files *.log of ended jobs, and in the folders of logs.")
    log_folders: tuple[str, ...] = threshold((), "Folders of logs",
        "Absolute paths without links.")
    copy_logs: bool = threshold(False, "Copy logs before they are deleted",
        "To the sync target.")
    database_folders: tuple[str, ...] = threshold((), "Folders of databases",
        "Empty database files (.db, .sqlite, .sqlite3) that are older than a day are deleted.")
    checkpoint_folders: tuple[str, ...] = threshold((), "Folders of checkpoints",
        "Besides the checkpoints of ended jobs.")
    data_folders: tuple[str, ...] = threshold((), "Folders of data",
        "Files there are copied to the sync target, and deleted after the copy is verified.")
    sync_target: str = threshold("", "Sync target",
        "Folder on another file system, such as a mounted store. Checkpoints and data are copied "
        "there by rsync, and deleted only after size and checksum of the copy are verified. "
        "Empty = they are never deleted.")
    # fmt: on

    def conflicts(self) -> dict[str, str]:
        problems = {}
        for name in ("log_folders", "database_folders", "checkpoint_folders", "data_folders"):
            if wrong := [path for path in getattr(self, name) if not _may_be_cleaned(path)]:
                problems[name] = f"{wrong[0]} must be an absolute path below a folder of your own"
        if self.sync_target and not self.sync_target.startswith("/"):
            problems["sync_target"] = "it must be an absolute path"
        return problems

    def roots(self) -> tuple[CleanRoot, ...]:
        """The folders that operators have listed."""
        lists = (
            (self.log_folders, CleanRule.LOG),
            (self.database_folders, CleanRule.DATABASE),
            (self.checkpoint_folders, CleanRule.CHECKPOINT),
            (self.data_folders, CleanRule.DATA),
        )
        return tuple(
            CleanRoot(path.rstrip("/"), rule)
            for paths, rule in lists
            for path in paths
            if _may_be_cleaned(path)
        )


def _may_be_cleaned(path: str) -> bool:
    plain = path.rstrip("/") or "/"
    parts = plain.split("/")
    if not plain.startswith("/") or ".." in parts or "." in parts or "" in parts[1:]:
        return False
    return plain not in PROTECTED and not any(
        plain.startswith(f"{folder}/") for folder in PROTECTED_BELOW
    )


def candidates(
    files_by_root: Mapping[CleanRoot, Sequence[FileEntry]],
    policy: CleaningPolicy,
    now: datetime,
    unfinished: Collection[str] = (),
) -> list[Candidate]:
    """The files that may be deleted, by rule and then oldest first; each file once.

    unfinished: numbers of jobs that may still need their files.
    """
    chosen: dict[tuple[int, int], Candidate] = {}
    for rule in ORDER:
        matching = [
            (root, file)
            for root, files in files_by_root.items()
            if root.rule is rule
            for file in files
            if not (root.of_jobs and file.parts[0] in unfinished) and _is_within(file, root)
        ]
        for file in sorted(_matching(rule, matching, policy, now), key=_age):
            chosen.setdefault((file.device, file.inode), _candidate(rule, file, policy))
    return list(chosen.values())


def _is_within(file: FileEntry, root: CleanRoot) -> bool:
    return not root.within or root.within in file.parts[:-1]


def _age(file: FileEntry) -> tuple[int, str]:
    return file.mtime_ns, file.path


def _candidate(rule: CleanRule, file: FileEntry, policy: CleaningPolicy) -> Candidate:
    copies = rule in (CleanRule.CHECKPOINT, CleanRule.DATA)
    return Candidate(rule, file, copies or (rule is CleanRule.LOG and policy.copy_logs))


def _matching(
    rule: CleanRule,
    files_by_root: Iterable[tuple[CleanRoot, FileEntry]],
    policy: CleaningPolicy,
    now: datetime,
) -> Iterator[FileEntry]:
    files = [file for _, file in files_by_root]
    if rule is CleanRule.LOG:
        old = _before(now, timedelta(days=policy.log_days))
        return (f for f in files if f.parts[-1].endswith(".log") and f.mtime_ns < old)
    if rule is CleanRule.DATABASE:
        old = _before(now, DATABASE_AGE)
        return (f for f in files if f.is_empty_database and f.mtime_ns < old)
    if rule is CleanRule.CHECKPOINT:
        return _stale(files, now)
    old = _before(now, DATA_AGE)
    return (f for f in files if f.mtime_ns < old)


def _stale(files: Iterable[FileEntry], now: datetime) -> Iterator[FileEntry]:
    """All but the newest of each folder, if they are old enough."""
    folders: dict[tuple[str, ...], list[FileEntry]] = defaultdict(list)
    for file in files:
        folders[file.root, *file.parts[:-1]].append(file)
    old = _before(now, CHECKPOINT_AGE)
    for group in folders.values():
        group.sort(key=_age, reverse=True)
        yield from (file for file in group[CHECKPOINTS_KEPT:] if file.mtime_ns < old)


def _before(now: datetime, age: timedelta) -> int:
    """In nanoseconds since 1970, as the kernel counts."""
    return round((now - age).timestamp() * 1e9)


def needed(ordered: Sequence[Candidate], space: DiskSpace, until_pct: float) -> Sequence[Candidate]:
    """The first candidates that bring the use below `until_pct`; all, if they are too few."""
    usable = space.used_bytes + space.available_bytes
    excess = space.used_bytes - usable * until_pct / 100
    for number, candidate in enumerate(ordered):
        if excess <= 0:
            return ordered[:number]
        excess -= candidate.file.disk_bytes
    return ordered
