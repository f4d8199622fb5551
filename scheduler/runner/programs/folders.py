"""Program: lists the folders in a folder, as an account may read them.

`folders.py PATH CLOSED MOST [UID GID GROUPS]` becomes the account before it looks at any path.
It writes JSON: path (the folder, or the nearest one above it), its parent, its folders by name,
whether there are more, and a problem. Links are not followed, hidden folders are left out, and
nothing is listed in the folder CLOSED.
"""

from __future__ import annotations

import json
import os
import sys
from itertools import islice
from pathlib import Path

# Entries of the folder that are read, so that one with millions of files takes no longer.
MOST_READ = 20_000


def listing(path: str, closed: str, most: int) -> dict[str, object]:
    folder = nearest(Path(os.path.normpath(path)))
    answer: dict[str, object] = {"path": str(folder), "parent": str(folder.parent)}
    if folder.resolve().is_relative_to(closed):
        return answer | {"folders": [], "more": False, "problem": "gpucoord does not list it."}
    try:
        with os.scandir(folder) as entries:
            read = list(islice(entries, MOST_READ + 1))
    except OSError as error:
        return answer | {"folders": [], "more": False, "problem": f"{error.strerror}."}
    names = sorted(entry.name for entry in read[:MOST_READ] if is_listed(entry))
    is_cut = len(read) > MOST_READ or len(names) > most
    return answer | {"folders": names[:most], "more": is_cut, "problem": ""}


def become(uid: int, gid: int, groups: str) -> None:
    os.setgroups([int(group) for group in groups.split(",") if group])
    os.setgid(gid)
    os.setuid(uid)


def nearest(path: Path) -> Path:
    """The path, or the first folder above it that is there."""
    return next((each for each in (path, *path.parents) if _is_folder(each)), Path("/"))


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:
        return False


def is_listed(entry: os.DirEntry[str]) -> bool:
    try:
        is_folder = entry.is_dir(follow_symlinks=False)
    except OSError:
        return False
    return is_folder and not entry.name.startswith(".") and entry.name.isprintable()


if __name__ == "__main__":
    if len(sys.argv) > 4:
        become(int(sys.argv[4]), int(sys.argv[5]), sys.argv[6])
    sys.stdout.write(json.dumps(listing(sys.argv[1], sys.argv[2], int(sys.argv[3]))))
