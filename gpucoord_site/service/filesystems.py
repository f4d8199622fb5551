"""The file system of a path. SQLite's write-ahead log needs a local one."""

from __future__ import annotations

import re
from pathlib import Path

from msgspec import Struct

# Shared by several machines, or with unreliable locks and shared memory maps.
NETWORK = frozenset(
    {
        "9p", "afs", "beegfs", "ceph", "cifs", "coda", "davfs", "gfs2", "glusterfs", "gpfs",
        "lustre", "ncpfs", "nfs", "nfs4", "ocfs2", "orangefs", "pvfs2", "smb2", "smb3", "smbfs",
    }
)  # fmt: skip
NETWORK_FUSE = frozenset(
    {"ceph", "davfs2", "glusterfs", "juicefs", "rclone", "s3fs", "seaweedfs", "sshfs"}
)


class Mount(Struct, frozen=True):
    point: Path
    kind: str
    source: str

    @property
    def network(self) -> bool:
        return self.kind in NETWORK or self.kind.removeprefix("fuse.") in NETWORK_FUSE


def mount_of(path: Path, mountinfo: str | None = None) -> Mount | None:
    """The mount of `path`, also if `path` does not exist yet; None if /proc does not list it."""
    if mountinfo is None:
        try:
            mountinfo = Path("/proc/self/mountinfo").read_text(errors="surrogateescape")
        except OSError:
            return None
    real = path.resolve()
    over = [m for m in map(_mount, mountinfo.splitlines()) if m and real.is_relative_to(m.point)]
    # The later of two mounts on one point is on top.
    return max(reversed(over), key=lambda m: len(m.point.parts), default=None)


def _mount(line: str) -> Mount | None:
    left, separator, right = line.partition(" - ")
    before, after = left.split(), right.split()
    if not separator or len(before) < 5 or len(after) < 2:
        return None
    return Mount(Path(_unescaped(before[4])), after[0], _unescaped(after[1]))


def _unescaped(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), text)


def network_problem(database: Path, mountinfo: str | None = None) -> str | None:
    """A sentence with a remedy if SQLite must not be at `database`; else None."""
    mount = mount_of(database, mountinfo)
    if mount is None or not mount.network:
        return None
    return (
        f"The database {database} would lie on a network file system ({mount.kind}, {mount.source}"
        f" on {mount.point}), where SQLite can lose data. Set GPUCOORD_DATA to a folder on a disk"
        " of this machine, or DATABASE_URL to a PostgreSQL database."
    )
