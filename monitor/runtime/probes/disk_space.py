"""Edge: read the space of the file system of a path."""

from __future__ import annotations

import os

from monitor.facts.readings import FileSystemSpace


def read(path: str | os.PathLike[str]) -> FileSystemSpace:
    """Raises OSError. It does not return while a network mount does not answer."""
    space = os.statvfs(path)
    return FileSystemSpace(
        used_bytes=(space.f_blocks - space.f_bfree) * space.f_frsize,
        available_bytes=space.f_bavail * space.f_frsize,
    )
