"""Edge: the persons into whose home folders the bind mounts of a container lead.

A folder counts only if others can't reach it, because open folders are mounted for their data.
The kernel says what is mounted, so neither labels nor names of paths can forge it.
"""

from __future__ import annotations

import grp
import pwd
import re
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from monitor.facts.accounts import is_person

# A container with more mounts, or more folders behind them, is not looked at: those that were left
# out could be another person's.
MOST_MOUNTS = 1000
MOST_SOURCES = 200


# The processes of a container have the same text.
@lru_cache(maxsize=32)
def sources(container: str, host: str) -> tuple[Path, ...]:
    """The folders of the host that a container mounts, from both texts of /proc/PID/mountinfo.

    Empty also for a container that mounts too much to be looked at.
    """
    if container.count("\n") > MOST_MOUNTS:
        return ()
    points, folders = _by_device(host), dict[Path, None]()
    for device, root, _ in _entries(container):
        for host_root, host_mount in points.get(device, ()):
            if (inner := _below(root, host_root)) is not None:
                folders[Path(host_mount) / inner] = None
                if len(folders) > MOST_SOURCES:
                    return ()
    return tuple(folders)


@lru_cache(maxsize=2)
def _by_device(host: str) -> Mapping[str, Sequence[tuple[str, str]]]:
    """Root and mount point of each mount of the host."""
    points: dict[str, list[tuple[str, str]]] = {}
    for device, root, mount in _entries(host):
        points.setdefault(device, []).append((root, mount))
    return points


def owners_of(folders: Iterable[Path]) -> frozenset[int]:
    """The uids of the persons in whose closed home folders these lie."""
    people = (_person(folder) for folder in folders)
    return frozenset(uid for uid in people if uid is not None)


def person_of_path(path: str) -> int | None:
    """The person in whose home folder a path of a label lies, closed or not. It proves nothing."""
    for above in (Path(path), *Path(path).parents):
        try:
            uid = above.stat().st_uid
            home = pwd.getpwuid(uid).pw_dir
        except (OSError, KeyError, ValueError):
            continue
        if is_person(uid) and Path(path).is_relative_to(home):
            return uid
    return None


def _person(folder: Path) -> int | None:
    try:
        uid = folder.stat().st_uid
        entry = pwd.getpwuid(uid)
        home = Path(entry.pw_dir).resolve()
        if not is_person(uid) or not folder.is_relative_to(home) or home == Path("/"):
            return None
        parts = [folder, *folder.parents]
        own = parts[: parts.index(home) + 1]
        return uid if any(_is_closed(part, entry) for part in own) else None
    except (OSError, KeyError):
        return None


def _is_closed(folder: Path, person: pwd.struct_passwd) -> bool:
    """Whether only its owner, who is this person, can enter it."""
    status = folder.stat()
    if status.st_uid != person.pw_uid or status.st_mode & stat.S_IXOTH:
        return False
    return not status.st_mode & stat.S_IXGRP or _is_own_group(status.st_gid, person)


def _is_own_group(gid: int, person: pwd.struct_passwd) -> bool:
    """Whether the group has no other member: it is called as its person."""
    try:
        group = grp.getgrgid(gid)
    except KeyError:
        return False
    return group.gr_name == person.pw_name and set(group.gr_mem) <= {person.pw_name}


def _entries(text: str) -> Iterator[tuple[str, str, str]]:
    """(device, root, mount point) of each line of mountinfo."""
    for line in text.splitlines():
        words = line.split(" ")
        if len(words) > 5:
            yield words[2], _unescaped(words[3]), _unescaped(words[4])


def _below(root: str, host_root: str) -> str | None:
    """The path of `root` below `host_root`; None: it lies elsewhere."""
    if root == host_root:
        return "."
    above = host_root.rstrip("/") + "/"
    return root.removeprefix(above) if root.startswith(above) else None


def _unescaped(path: str) -> str:
    if "\\" not in path:
        return path
    return re.sub(r"\\([0-7]{3})", lambda escape: chr(int(escape[1], 8)), path)
