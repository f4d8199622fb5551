"""Observes the loops from outside: who held each lease when, and how long ticks stayed away."""

from __future__ import annotations

import itertools
import json
import sqlite3
import threading
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from tests.pace import PaceLog


@dataclass(frozen=True)
class Tick:
    loop: str
    epoch: int
    t: float


class TickWatch:
    """Reads the lease rows 50 times a second; a tick is a new `last_tick_at` that was committed."""

    def __init__(self, database: Path) -> None:
        self._database = database
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._pace = PaceLog()
        self.ticks: list[Tick] = []

    def __enter__(self) -> TickWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        last: dict[str, float] = {}
        self._pace.look()
        reader = sqlite3.connect(f"file:{self._database}?mode=ro", uri=True, timeout=60)
        while not self._stop.wait(0.02):
            self._pace.look()
            query = "SELECT loop, epoch, last_tick_at FROM monitor_lease WHERE last_tick_at NOTNULL"
            for loop, epoch, at in reader.execute(query).fetchall():
                t = datetime.fromisoformat(at).replace(tzinfo=UTC).timestamp()
                if last.get(loop) != t:
                    last[loop] = t
                    self.ticks.append(Tick(loop, epoch, t))
        reader.close()
        self._pace.look()

    def longest_hole(self, loop: str, since: float, until: float) -> float:
        """Seconds that count between two ticks, from the last before `since` up to `until`."""
        times = [tick.t for tick in self.ticks if tick.loop == loop and tick.t <= until]
        before = [t for t in times if t < since][-1:]
        inside = [t for t in times if t >= since]
        marks = [*before, *inside, until]
        return max(self._pace.seconds(a, b) for a, b in itertools.pairwise(marks))


def committed_ticks(database: Path, loop: str) -> list[dict[str, float]]:
    """Rows of `fake_steps`: each tick that was committed, in the order of the commits."""
    with sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=60) as reader:
        rows = reader.execute(
            "SELECT text FROM monitor_event WHERE kind = ? ORDER BY id", [f"TICK_{loop.upper()}"]
        ).fetchall()
    return [json.loads(text) for (text,) in rows]


def no_superseded_tick(database: Path) -> bool:
    """Whether epochs only ever grew from commit to commit, and each had one holder."""
    for loop in ("sampler", "controller", "scheduler"):
        ticks = committed_ticks(database, loop)
        epochs = [tick["epoch"] for tick in ticks]
        holder_of = {tick["epoch"]: tick["pid"] for tick in ticks}
        if epochs != sorted(epochs) or any(t["pid"] != holder_of[t["epoch"]] for t in ticks):
            return False
    return True
