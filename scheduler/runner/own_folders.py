"""Edge: the folder of a job that is kept across its attempts.

    JOB/N.yield          exists while attempt N is asked to leave its GPU
    JOB/checkpoint       for data that the job needs when it runs again
    JOB/given/N.progress how far attempt N has come, written by the job
    JOB/given/N.result   what attempt N has produced, written by the job
    JOB/given/N.terminal the socket of an interactive job's terminal
    JOB/attempt-N        files of attempt N of another engine; they belong to the job's account

For jobs with the service's account it is in the data folder. Other accounts cannot enter that, so
their folders are beside it or, if that is not accessible either, in /var/tmp, under a name that is
stored in the data folder.
"""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from scheduler.runner import files

REMEMBERED = "jobs-folder.json"
LASTING = "/var/tmp"  # noqa: S108 - a folder of a random name is made there
PASSABLE = 0o711


@dataclass(frozen=True, slots=True)
class GivenFiles:
    """The files in which an attempt reports its progress and its result, and its terminal."""

    progress: Path
    result: Path
    terminal: Path


@dataclass(frozen=True, slots=True)
class OwnFolder:
    """Paths in a job's environment."""

    path: Path

    @property
    def yields(self) -> Path:
        """A folder for yield files alone, which a job may read when the rest is closed to it."""
        return self.path / "yield"

    def yield_file(self, attempt: int, *, apart: bool = False) -> Path:
        return (self.yields if apart else self.path) / f"{attempt}.yield"

    @property
    def checkpoint(self) -> Path:
        return self.path / "checkpoint"

    @property
    def given(self) -> Path:
        """What the job writes for gpucoord; it belongs to the job's account."""
        return self.path / "given"

    def attempt(self, number: int) -> Path:
        """The folder of an attempt whose runner has the job's account, as in Slurm."""
        return self.path / f"attempt-{number}"

    def given_files(self, attempt: int) -> GivenFiles:
        names = (f"{attempt}.{kind}" for kind in ("progress", "result", "terminal"))
        return GivenFiles(*(self.given / name for name in names))

    def make(self, uid: int | None, gid: int | None) -> None:
        """Make it, if that is not done; the folders in it belong to the job's account."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if uid is not None:
            _let_pass(self.path.parent)
            _let_pass(self.path)
        for folder in (self.checkpoint, self.given):
            try:
                folder.mkdir(mode=0o700)
            except FileExistsError:
                continue
            if uid is not None and gid is not None:
                os.chown(folder, uid, gid, follow_symlinks=False)


def own_folder(data: Path, job_id: int, *, uid: int | None, chosen: Path | None) -> OwnFolder:
    """Of this job; `chosen`: where all of them are to be."""
    if chosen is not None:
        return OwnFolder(chosen / str(job_id))
    if uid is None:
        return OwnFolder(files.job_folder(data, job_id))
    return OwnFolder(_shared(data) / str(job_id))


def roots(data: Path, chosen: Path | None) -> list[Path]:
    """Folders that may contain files of jobs: that of the logs, and existing own folders."""
    remembered = files.read_json(data / REMEMBERED)
    others = [chosen, _beside(data), Path(remembered["path"]) if remembered else None]
    return [files.jobs_folder(data), *(path for path in others if path and path.is_dir())]


def _beside(data: Path) -> Path:
    return data.with_name(f"{data.name}-jobs")


@cache
def _shared(data: Path) -> Path:
    if all(folder.stat().st_mode & stat.S_IXOTH for folder in data.parents):
        return _beside(data)
    remembered = files.read_json(data / REMEMBERED)
    if remembered is None:
        remembered = {"path": tempfile.mkdtemp(prefix="gpucoord-jobs-", dir=LASTING)}
        files.write_json(data / REMEMBERED, remembered)
    return Path(remembered["path"])


def _let_pass(folder: Path) -> None:
    """Let other accounts traverse a folder of ours, without listing it."""
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        raise PermissionError(errno.EPERM, "it is not a folder of the service's account", folder)
    if not status.st_mode & stat.S_IXOTH:
        folder.chmod(PASSABLE)
