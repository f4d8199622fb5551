"""Edge: CPU and memory caps of one process by cgroup v2, and their end.

A cgroup that holds nothing but the process and its descendants is capped in place. Else the
process is moved into one of ours, and back; out of a container it is never moved.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from scheduler.runner import process_tree

ROOT = Path("/sys/fs/cgroup")
OURS = "gpucoord.caps"
PERIOD = 100_000
FILES = ("cpu.max", "memory.high")
NO_CGROUPS = "This machine has no cgroup v2 that gpucoord may write to."
NOT_ALONE = "Others are in its cgroup, and out of a container nothing is moved."


def read_caps(pid: int, root: Path = ROOT) -> dict[str, object] | None:
    """Its cgroup and the caps there; None: no cgroup v2, or it has ended."""
    where = _where(pid)
    if where is None or not (root / "cgroup.controllers").exists():
        return None
    group = _at(root, where)
    caps = {name: _read(group / name) for name in FILES}
    return {"cgroup": where, "alone": _is_alone(pid, group), "caps": caps}


def cap(
    key: str,
    pid: int,
    before: dict[str, object] | None,
    *,
    cores: float,
    memory_bytes: int | None,
    in_container: bool,
    root: Path = ROOT,
) -> str | None:
    """Set the caps; the problem when that could not be done."""
    if not before:
        return NO_CGROUPS
    wanted = {"cpu.max": f"{int(cores * PERIOD)} {PERIOD}"}
    if memory_bytes:
        wanted["memory.high"] = str(memory_bytes)
    try:
        if before.get("alone"):
            group = _at(root, str(before["cgroup"]))
        elif in_container:
            return NOT_ALONE
        else:
            group = _own_group(root, key)
        for name, value in wanted.items():
            (group / name).write_text(value)
        if not before.get("alone"):
            (group / "cgroup.procs").write_text(str(pid))
    except OSError as error:
        return f"The caps could not be set: {error.strerror}."
    return None


def uncap(key: str, before: dict[str, object], root: Path = ROOT) -> None:
    """As it was; does no harm when it was never capped."""
    origin = _at(root, str(before.get("cgroup", "/")))
    caps = before.get("caps")
    if before.get("alone"):
        for name, value in caps.items() if isinstance(caps, dict) else ():
            with suppress(OSError):
                if value is not None and (origin / name).exists():
                    (origin / name).write_text(str(value))
        return
    group = root / OURS / key
    for member in (_read(group / "cgroup.procs") or "").split():
        with suppress(OSError):
            (_nearest(origin, root) / "cgroup.procs").write_text(member)
    with suppress(OSError):
        group.rmdir()


def _own_group(root: Path, key: str) -> Path:
    group = root / OURS / key
    group.mkdir(parents=True, exist_ok=True)
    for folder in (root, root / OURS):
        with suppress(OSError):
            (folder / "cgroup.subtree_control").write_text("+cpu +memory")
    return group


def _nearest(folder: Path, root: Path) -> Path:
    """Its previous cgroup, or the closest ancestor that still exists."""
    while folder != root and not (folder / "cgroup.procs").exists():
        folder = folder.parent
    return folder


def _is_alone(pid: int, group: Path) -> bool:
    members = {int(text) for text in (_read(group / "cgroup.procs") or "").split()}
    own = {pid} | {relative.pid for relative in process_tree.descendants(pid)}
    return bool(members) and members <= own


def _where(pid: int) -> str | None:
    for line in (_read(Path(f"/proc/{pid}/cgroup")) or "").splitlines():
        if line.startswith("0::"):
            return line[3:]
    return None


def _at(root: Path, where: str) -> Path:
    return root / where.lstrip("/")


def _read(path: Path) -> str | None:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return None
