"""Edge: the folder that is a job's own: what it saves there outlives its attempts.

    JOB/N.yield      appears when attempt N is asked to leave its GPU
    JOB/checkpoint   the job's, for whatever it wants to find again when it runs again

Where jobs run as the service's account, it lies with the rest of the job in the data folder. Other
accounts can't reach into that: theirs is beside it, or, where they can't come there either, in
/var/tmp, under a name that the data folder remembers.
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
class OwnFolder:
    """Paths that a job is told."""

    path: Path

    def yield_file(self, attempt: int) -> Path:
        return self.path / f"{attempt}.yield"

    @property
    def checkpoint(self) -> Path:
        return self.path / "checkpoint"

    def make(self, uid: int | None, gid: int | None) -> None:
        """Make it, if that is not done; the checkpoint folder belongs to the job's account."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if uid is not None:
            _let_pass(self.path.parent)
            _let_pass(self.path)
        try:
            self.checkpoint.mkdir(mode=0o700)
        except FileExistsError:
            return
        if uid is not None and gid is not None:
            os.chown(self.checkpoint, uid, gid, follow_symlinks=False)


def own_folder(data: Path, job_id: int, *, uid: int | None, chosen: Path | None) -> OwnFolder:
    """Of this job; `chosen`: where all of them are to be."""
    if chosen is not None:
        return OwnFolder(chosen / str(job_id))
    if uid is None:
        return OwnFolder(files.job_folder(data, job_id))
    return OwnFolder(_shared(data) / str(job_id))


def roots(data: Path, chosen: Path | None) -> list[Path]:
    """Where jobs' files may lie: that of the logs, and, where they are there, those of other
    folders of their own."""
    found = files.read_json(data / REMEMBERED)
    others = [chosen, _beside(data), Path(found["path"]) if found else None]
    return [files.jobs_folder(data), *(path for path in others if path and path.is_dir())]


def _beside(data: Path) -> Path:
    return data.with_name(f"{data.name}-jobs")


@cache
def _shared(data: Path) -> Path:
    if all(folder.stat().st_mode & stat.S_IXOTH for folder in data.parents):
        return _beside(data)
    found = files.read_json(data / REMEMBERED)
    if found is None:
        found = {"path": tempfile.mkdtemp(prefix="gpucoord-jobs-", dir=LASTING)}
        files.write_json(data / REMEMBERED, found)
    return Path(found["path"])


def _let_pass(folder: Path) -> None:
    """Others may go through, and find what they know the name of; it must be ours."""
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise PermissionError(errno.EPERM, "it is not a folder of the service's account", folder)
    if not found.st_mode & stat.S_IXOTH:
        folder.chmod(PASSABLE)
