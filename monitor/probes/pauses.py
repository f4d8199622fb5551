"""Edge: whether a process is paused, and for how much of the time: by a signal, or frozen."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from threading import Event, Lock, Thread

CGROUPS = Path("/sys/fs/cgroup")
LOOK_S = 0.03


class Pauses:
    """Looks at processes all the time, as a driver's figures are means and no instants.

    Its thread is there only while there are processes to look at.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        # By pid: how often it was looked at, and found paused, since the last question.
        self._seen: dict[int, list[int]] = {}
        self._thread: Thread | None = None
        self._stops = Event()

    def parts(self, pids: Iterable[int]) -> dict[int, float]:
        """The part of the time since the last question for which each of these was paused."""
        with self._lock:
            seen, self._seen = self._seen, {pid: [0, 0] for pid in pids}
            if self._seen and self._thread is None:
                self._thread = Thread(target=self._look, name="pauses", daemon=True)
                self._thread.start()
            return {pid: _part(pid, *seen.get(pid, (0, 0))) for pid in self._seen}

    def close(self) -> None:
        self._stops.set()

    def _look(self) -> None:
        while not self._stops.wait(LOOK_S):
            with self._lock:
                pids = list(self._seen)
                if not pids:
                    self._thread = None
                    return
            found = {pid: is_paused(pid) for pid in pids}
            with self._lock:
                for pid in found.keys() & self._seen.keys():
                    self._seen[pid][0] += 1
                    self._seen[pid][1] += found[pid]


def _part(pid: int, looks: int, paused: int) -> float:
    return paused / looks if looks else float(is_paused(pid))


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
