"""Edge: the space of file systems, read in a thread because a dead network mount never answers."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread
from typing import TypeVar

from monitor.runtime.probes import disk_space
from scheduler.disk.policy import DiskSpace

T = TypeVar("T")
PATIENCE_S = 2.0
NETWORK = ("nfs", "nfs4", "cifs", "smb3", "ceph", "glusterfs", "lustre", "9p", "afs")
NO_ANSWER = "The file system does not answer."
# Questions about folders that are still without an answer.
_pending: dict[str, Event] = {}


class Unreadable(Exception):
    """The space of a folder cannot be read; the text says why."""


def read(path: str, patience_s: float = PATIENCE_S) -> DiskSpace:
    """Raises Unreadable, within `patience_s`. A folder that hangs is not asked again meanwhile."""
    return _answered(f"space of {path}", lambda: _ask(path), patience_s)


def _answered(name: str, ask: Callable[[], T], patience_s: float) -> T:
    """The answer of a thread. Raises Unreadable, also while an earlier question hangs."""
    pending = _pending.get(name)
    if pending is not None and not pending.is_set():
        raise Unreadable(NO_ANSWER)
    done, answers, errors = Event(), list[T](), list[OSError]()

    def work() -> None:
        try:
            answers.append(ask())
        except OSError as error:
            errors.append(error)
        done.set()

    _pending[name] = done
    Thread(target=work, name=name, daemon=True).start()
    if not done.wait(patience_s):
        raise Unreadable(NO_ANSWER)
    _pending.pop(name, None)
    if errors:
        raise Unreadable(f"{errors[0].strerror or errors[0]}.")
    return answers[0]


def _ask(path: str) -> DiskSpace:
    space = disk_space.read(path)
    return DiskSpace(
        device=_name(Path(path).stat().st_dev),
        used_bytes=space.used_bytes,
        available_bytes=space.available_bytes,
    )


def _name(device: int) -> str:
    return f"{os.major(device)}:{os.minor(device)}"


def device_of(path: str, patience_s: float = PATIENCE_S) -> str | None:
    """The device of a folder or of its nearest parent; None = unknown.

    A folder on a network mount is not touched, as its server may be dead. A link may lead to one,
    so that others are asked in a thread.
    """
    mounts = mount_table(_mountinfo())
    above = [mount for mount in mounts if _is_below(path, mount)]
    nearest = max(above, key=len, default=None)
    if nearest is not None and mounts[nearest][1] in NETWORK:
        return mounts[nearest][0]
    try:
        return _answered(f"device of {path}", lambda: _nearest_device(path), patience_s)
    except Unreadable:
        return None


def _nearest_device(path: str) -> str | None:
    folder = Path(path)
    for candidate in (folder, *folder.parents):
        try:
            return _name(candidate.stat().st_dev)
        except OSError:
            continue
    return None


def _is_below(path: str, mount: str) -> bool:
    return path == mount or path.startswith(f"{mount.rstrip('/')}/")


def _mountinfo() -> str:
    try:
        return Path("/proc/self/mountinfo").read_text(errors="replace")
    except OSError:
        return ""


def mount_table(mountinfo: str) -> dict[str, tuple[str, str]]:
    """Device and type by mount point."""
    mounts = {}
    for line in mountinfo.splitlines():
        words, _, rest = line.partition(" - ")
        fields = words.split()
        mounts[_plain(fields[4])] = (fields[2], rest.split()[0])
    return mounts


def _plain(text: str) -> str:
    """The kernel writes spaces and backslashes of a path as octal numbers."""
    return text.encode().decode("unicode_escape", errors="replace") if "\\" in text else text
