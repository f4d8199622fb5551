"""Facts: the space of watched folders, and what a full file system means for jobs."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from monitor.facts.hosts import FileSystemSpace
from monitor.facts.input_rules import escaped


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


@dataclass(frozen=True, slots=True)
class WatchedFolder:
    """A folder whose file system is watched. role: why, such as "data"."""

    path: str
    role: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskSpace(FileSystemSpace):
    """The space of the file system of a watched folder. device: of the file system, "8:1"."""

    device: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FullDisk:
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


@dataclass(frozen=True, slots=True)
class CleanRoot:
    """A folder in which files may be deleted.

    within: only below folders of this name; "" = everywhere. of_jobs: it has a folder of each job.
    """

    path: str
    rule: CleanRule
    within: str = ""
    of_jobs: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEntry:
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


@dataclass(frozen=True, slots=True)
class Candidate:
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
