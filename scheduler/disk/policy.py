"""Policy: when the file system of a watched folder is low on space, and which jobs then wait.

Policy: which files a clean-up may delete, in which order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from msgspec import Struct

from monitor.facts.formats import GIB
from monitor.facts.input_rules import escaped
from monitor.facts.readings import FileSystemSpace
from monitor.facts.thresholds import percent, threshold
from scheduler.facts.blockers import Blocker, BlockerCode, Tier, details
from scheduler.facts.units import size

# The space of watched folders, and what a full file system means for jobs.


class DiskLevel(StrEnum):
    """Normal · nearly full · to be cleaned · no job with a folder there starts · unknown."""

    NORMAL = "normal"
    WARNING = "warning"
    CLEANING = "cleaning"
    BLOCKED = "blocked"
    UNKNOWN = "unknown"

    @property
    def is_low(self) -> bool:
        return self in (DiskLevel.WARNING, DiskLevel.CLEANING, DiskLevel.BLOCKED)


class FolderUse(StrEnum):
    """Purpose of a folder for a job."""

    WORKING = "working folder"
    LOG = "log folder"
    CHECKPOINT = "checkpoint folder"


class WatchedFolder(Struct, frozen=True):
    """A folder whose file system is watched. role: why, such as "data"."""

    path: str
    role: str


class DiskSpace(FileSystemSpace, frozen=True, kw_only=True):
    """The space of the file system of a watched folder. device: of the file system, "8:1"."""

    device: str


class FullDisk(Struct, frozen=True, kw_only=True):
    """A file system on which no job may write more. path: the watched folder on it.

    Both limits are passed: limit_pct of the use, and limit_bytes of the free space.
    """

    path: str
    device: str
    used_pct: float
    limit_pct: float
    limit_bytes: int
    available_bytes: int


class CleanRule(StrEnum):
    """Kinds of files that may be deleted, in the order of deletion."""

    LOG = "old log"
    DATABASE = "empty database"
    CHECKPOINT = "stale checkpoint"
    DATA = "data on the sync target"


class CleanRoot(Struct, frozen=True):
    """A folder in which files may be deleted.

    within: only below folders of this name; "" = everywhere. of_jobs: it has a folder of each job.
    """

    path: str
    rule: CleanRule
    within: str = ""
    of_jobs: bool = False


class FileEntry(Struct, frozen=True, kw_only=True):
    """A regular file as it was found; a file that differs later has changed.

    parts: folders and name below the root. disk_bytes: what its deletion frees.
    """

    root: str
    parts: tuple[str, ...]
    device: int
    inode: int
    size: int
    disk_bytes: int
    mtime_ns: int
    ctime_ns: int
    is_empty_database: bool = False

    @property
    def path(self) -> str:
        return "/".join((self.root.rstrip("/"), *self.parts))

    @property
    def shown_path(self) -> str:
        """For rows and pages: a name may hold control characters, or bytes that are no UTF-8."""
        return escaped(self.path)


class Candidate(Struct, frozen=True):
    """A file that may be deleted; needs_copy: not before its copy is verified."""

    rule: CleanRule
    file: FileEntry
    needs_copy: bool = False


class CleanResult(StrEnum):
    """Result for a candidate. All but the first are spared."""

    DELETED = "deleted"
    OPEN = "open"
    CHANGED = "changed"
    NOT_COPIED = "not copied"
    REFUSED = "refused"


# Jobs will soon wait where less is left than this multiple of the free space that they need.
NEAR = 2
# With less left, no job starts that has only its log there.
LOGS_NEED_BYTES = 2 * GIB
# %: a level ends when the use is this much below its threshold.
CALM_PCT = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskPolicy:
    """Space of the watched file systems, in percent used as `df` counts it. 100 = never."""

    # fmt: off
    warn_pct: float = percent(60.0, "Low disk space above", "An event is recorded.")
    clean_pct: float = percent(65.0, "Clean up above",
        "A clean-up is due. It starts by itself if automatic clean-up is on.")
    block_pct: float = percent(70.0, "No job starts above",
        "Jobs wait whose working or checkpoint folder is on this file system, if less than the "
        "free space below is left too.")
    block_free_gib: float = threshold(50.0, "and with less free than", unit="GiB", ge=0,
        le=1_000_000, help="Or less than the part below, whichever is smaller.")
    block_free_pct: float = percent(5.0, "and with less free than this part",
        "Of the file system. 100 here and 1000000 GiB above leave the percentage alone.")
    paths: tuple[str, ...] = threshold((), "Watched folders",
        "Absolute paths besides the data folder and the folder of checkpoints.")
    # fmt: on

    def conflicts(self) -> dict[str, str]:
        problems = {}
        if self.clean_pct < self.warn_pct:
            problems["clean_pct"] = "it must not be below the warning"
        if self.block_pct < self.clean_pct:
            problems["block_pct"] = "it must not be below the clean-up"
        if any(not path.startswith("/") for path in self.paths):
            problems["paths"] = "each must be an absolute path"
        return problems


def floor_bytes(usable_bytes: int, policy: DiskPolicy) -> int:
    """Free space from which on jobs start, however full the file system is in percent."""
    part = usable_bytes * policy.block_free_pct / 100
    return round(min(policy.block_free_gib * GIB, part))


def is_near(space: FileSystemSpace, policy: DiskPolicy) -> bool:
    """Whether jobs wait, or soon will, for room on this file system."""
    used = space.used_pct
    if used is None or not policy.block_pct < min(used, 100):
        return False
    return space.available_bytes < NEAR * floor_bytes(space.usable_bytes, policy)


def level(space: DiskSpace | None, policy: DiskPolicy, before: DiskLevel) -> DiskLevel:
    """The level of a file system; one that cannot be read (None) keeps its level."""
    used = None if space is None else space.used_pct
    if used is None:
        return before
    limits = (
        (DiskLevel.BLOCKED, policy.block_pct),
        (DiskLevel.CLEANING, policy.clean_pct),
        (DiskLevel.WARNING, policy.warn_pct),
    )
    for stage, limit in limits:
        calm_pct = CALM_PCT if _rank(before) >= _rank(stage) else 0.0
        if not (limit < 100 and used > limit - calm_pct):
            continue
        if stage is not DiskLevel.BLOCKED or _is_short(space, policy, calm_pct):
            return stage
    return DiskLevel.NORMAL


def _is_short(space: DiskSpace | None, policy: DiskPolicy, calm_pct: float) -> bool:
    if space is None:
        return False
    calm = space.usable_bytes * calm_pct / 100
    return space.available_bytes < floor_bytes(space.usable_bytes, policy) + calm


_ORDER = (DiskLevel.NORMAL, DiskLevel.WARNING, DiskLevel.CLEANING, DiskLevel.BLOCKED)


def _rank(stage: DiskLevel) -> int:
    return _ORDER.index(stage) if stage in _ORDER else 0


def sentence(path: str, space: DiskSpace, stage: DiskLevel, policy: DiskPolicy) -> str:
    """Sentence about a file system, with its figures."""
    used = space.used_pct or 0.0
    text = f"{path} is {used:.0f} % full; {size(space.available_bytes)} are left."
    if stage is DiskLevel.BLOCKED:
        floor = size(floor_bytes(space.usable_bytes, policy))
        return (
            f"{text} No job with its working or checkpoint folder there starts above"
            f" {policy.block_pct:g} % with less than {floor} left."
        )
    if stage is DiskLevel.CLEANING:
        return f"{text} A clean-up is due above {policy.clean_pct:g} %."
    return text


def full_blockers(
    folders: Iterable[tuple[FolderUse, str | None]], full: Mapping[str, FullDisk]
) -> tuple[Blocker, ...]:
    """Why a job waits. folders: each with its device; None = unknown, which blocks nothing.

    full: the full file systems by device. Each is named once, for the first of the folders.
    """
    blockers: dict[str, Blocker] = {}
    for use, device in folders:
        if device is None or device not in full or device in blockers:
            continue
        # Logs are small beside what jobs write.
        if use is not FolderUse.LOG or full[device].available_bytes < LOGS_NEED_BYTES:
            blockers[device] = _blocker(use, full[device])
    return tuple(blockers.values())


def _blocker(use: FolderUse, disk: FullDisk) -> Blocker:
    return Blocker(
        code=BlockerCode.DISK_FULL,
        tier=Tier.MACHINE,
        holder=disk.path,
        requested=use.value,
        details=details(
            path=disk.path,
            used_pct=round(disk.used_pct, 1),
            limit_pct=disk.limit_pct,
            limit_bytes=disk.limit_bytes,
            available_bytes=disk.available_bytes,
        ),
    )


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
