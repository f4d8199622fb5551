"""The heat strip: how busy each GPU was in each of the last 24 hours, and by whom most."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from monitor import usage
from monitor.models import Gpu, GpuHour
from monitor.rollups import HOUR_S, floor
from monitor.usage import Entry

HOURS = 24
# A GPU that did less than this was idle; above it five steps of 20 %.
IDLE_PCT, STEP_PCT = 1.0, 20


@dataclass(frozen=True, slots=True)
class Cell:
    """One GPU in one hour. `busy_pct` None: nothing is known; `owner` None: nobody known."""

    t: int
    busy_pct: float | None
    seen_s: int
    people: tuple[Entry, ...]
    first_of_run: bool
    goes_on: bool

    @property
    def until(self) -> int:
        return self.t + HOUR_S

    @property
    def level(self) -> str:
        if self.busy_pct is None:
            return "unknown"
        if self.busy_pct < IDLE_PCT:
            return "0"
        return str(min(5, 1 + int(self.busy_pct // STEP_PCT)))

    @property
    def main(self) -> Entry | None:
        return self.people[0] if self.people else None

    @property
    def idle_held(self) -> bool:
        """Somebody was on it, and used nothing of it as far as is known."""
        main = self.main
        return main is not None and main.usage.share_pct is not None and main.usage.sm_s < 1


@dataclass(frozen=True, slots=True)
class Strip:
    """One GPU's cells, oldest first, and who had it most, with in how many hours."""

    gpu: Gpu
    cells: tuple[Cell, ...]
    owners: tuple[tuple[str | None, int], ...]


def strips(gpus: Sequence[Gpu], now_t: int) -> list[Strip]:
    """A strip for each GPU: 23 whole hours and the one that goes on."""
    since = floor(now_t, HOUR_S) - (HOURS - 1) * HOUR_S
    uuids = [gpu.uuid for gpu in gpus]
    rows = {
        (gpu, t): (total, known, seen)
        for gpu, t, total, known, seen in GpuHour.objects.filter(
            gpu_id__in=uuids, t__gte=since
        ).values_list("gpu_id", "t", "utilization_pct_s", "utilization_known_s", "seen_s")
    }
    people = usage.hours(uuids, since, now_t)
    return [_strip(gpu, since, rows, people) for gpu in gpus]


def _strip(
    gpu: Gpu,
    since: int,
    rows: dict[tuple[str, int], tuple[float, int, int]],
    people: dict[tuple[str, int], list[Entry]],
) -> Strip:
    cells: list[Cell] = []
    last = since + (HOURS - 1) * HOUR_S
    for t in range(since, since + HOURS * HOUR_S, HOUR_S):
        total, known, seen = rows.get((gpu.uuid, t), (0.0, 0, 0))
        on = tuple(people.get((gpu.uuid, t), ()))
        name = on[0].subject if on else None
        before = cells[-1].main.subject if cells and cells[-1].main else None
        busy = total / known if known else None
        first = bool(on) and (name != before or not (cells and cells[-1].people))
        cells.append(Cell(t, busy, seen, on, first, goes_on=t == last))
    counts: dict[str | None, int] = {}
    for cell in cells:
        if cell.main:
            counts[cell.main.subject] = counts.get(cell.main.subject, 0) + 1
    owners = sorted(counts.items(), key=lambda item: -item[1])
    return Strip(gpu, tuple(cells), tuple(owners))
