"""Edge: whether a process is paused: stopped by a signal, or with its cgroup frozen."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")


def is_paused(pid: int) -> bool:
    """At this very instant. One that is gone is not."""
    with suppress(OSError, IndexError):
        stat = Path(f"/proc/{pid}/stat").read_text()
        if stat.rpartition(")")[2].split()[0] in ("T", "t"):
            return True
    with suppress(OSError):
        return any(_is_frozen(line) for line in _lines(f"/proc/{pid}/cgroup"))
    return False


def _is_frozen(line: str) -> bool:
    _, controllers, path = line.split(":", 2)
    if "freezer" in controllers:
        with suppress(OSError):
            state = CGROUPS / "freezer" / path.lstrip("/") / "freezer.state"
            return state.read_text().strip() != "THAWED"
    elif not controllers and path != "/":
        for root in (CGROUPS, CGROUPS / "unified"):
            with suppress(OSError):
                if "frozen 1" in (root / path.lstrip("/") / "cgroup.events").read_text():
                    return True
    return False


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines()
