"""The limits of the control group that this process is in, version 1 or 2."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from monitor.limits import Bound

# Version 1 says "no limit" with a number just below 2^63.
_NO_LIMIT = 2**60


class Cgroup:
    """Reads below `root`, so that a test may bring its own /proc and /sys.

    A limit holds for everything below it: each level is asked, up to the top that is mounted.
    """

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root
        self._mount = root / "sys/fs/cgroup"

    def memory(self) -> list[tuple[Bound, int | None]]:
        """Every limit with what is used of it."""
        return [*self._memory_v2(), *self._memory_v1()]

    def cpus(self) -> list[Bound]:
        return [*self._cpus_v2(), *self._cpus_v1()]

    def _memory_v2(self) -> Iterator[tuple[Bound, int | None]]:
        for level in self._levels("", self._mount):
            limit = _number(level / "memory.max")
            if limit is not None:
                used = _number(level / "memory.current")
                yield Bound(limit, "cgroup v2 memory.max"), _without_cache(used, level)

    def _memory_v1(self) -> Iterator[tuple[Bound, int | None]]:
        for level in self._levels("memory", self._mount / "memory"):
            limit = _number(level / "memory.limit_in_bytes")
            if limit is not None and limit < _NO_LIMIT:
                used = _number(level / "memory.usage_in_bytes")
                yield (
                    Bound(limit, "cgroup v1 memory.limit_in_bytes"),
                    _without_cache(used, level, "total_inactive_file"),
                )

    def _cpus_v2(self) -> Iterator[Bound]:
        for level in self._levels("", self._mount):
            quota, _, period = (_text(level / "cpu.max") or "").partition(" ")
            if quota.isdigit() and period.isdigit() and int(period):
                yield Bound(int(quota) / int(period), "cgroup v2 cpu.max")

    def _cpus_v1(self) -> Iterator[Bound]:
        for folder in ("cpu", "cpu,cpuacct"):
            for level in self._levels("cpu", self._mount / folder):
                quota = _number(level / "cpu.cfs_quota_us")
                period = _number(level / "cpu.cfs_period_us")
                if quota is not None and quota > 0 and period:
                    yield Bound(quota / period, "cgroup v1 cpu.cfs_quota_us")

    def _levels(self, controller: str, mount: Path) -> Iterator[Path]:
        """Our group's folder and those above it. In a container only the top may be there."""
        path = Path(self._path(controller).lstrip("/"))
        for level in (path, *path.parents):
            if ".." not in level.parts:
                yield mount / level

    def _path(self, controller: str) -> str:
        """From /proc/self/cgroup; version 2 is the line without a controller."""
        for line in (_text(self._root / "proc/self/cgroup") or "").splitlines():
            number, _, rest = line.partition(":")
            controllers, _, path = rest.partition(":")
            if controller in controllers.split(",") and (controller or number == "0"):
                return path
        return "/"


def _without_cache(used: int | None, level: Path, key: str = "inactive_file") -> int | None:
    """Used bytes without what the kernel gives back when it is asked for, as kubelet counts."""
    if used is None:
        return None
    for line in (_text(level / "memory.stat") or "").splitlines():
        name, _, value = line.partition(" ")
        if name == key and value.isdigit():
            return max(0, used - int(value))
    return used


def _number(path: Path) -> int | None:
    text = _text(path)
    return int(text) if text and text.lstrip("-").isdigit() else None


def _text(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None
