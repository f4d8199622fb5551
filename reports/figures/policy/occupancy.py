"""Policy: the main user of a GPU over time, and how much of the held time was used."""

from __future__ import annotations

from dataclasses import dataclass

from reports.figures.facts import Occupancy
from reports.figures.policy.ledger import Cell, GpuSums

# A bin in which less of the time was held stays blank.
LEAST_HELD = 0.05
IDLE_PCT = 5


@dataclass(slots=True)
class Run:
    """Neighbouring bins that look the same. kind: None: the use is unknown; else whether idle."""

    since: int
    until: int
    owner: str | None
    kind: bool | None
    sums: Cell

    def occupancy(self, least_known: float) -> Occupancy:
        pct = used_pct(self.sums, least_known)
        return Occupancy(since=self.since, until=self.until, user=self.owner, used_pct=pct)


def spans(gpu: GpuSums, bin_s: int, least_known: float) -> tuple[Occupancy, ...]:
    """The user who held most of the GPU in each bin; equal neighbours are one span.

    least_known: the part (0..1) of the held time whose use must be known.
    """
    runs: list[Run] = []
    for begin in sorted(gpu.bins):
        cells = gpu.bins[begin]
        owner = max(cells, key=lambda name: cells[name].held)
        sums = Cell()
        for cell in cells.values():
            sums.add(cell)
        if sums.held < LEAST_HELD * bin_s:
            continue
        pct = used_pct(sums, least_known)
        kind = None if pct is None else pct < IDLE_PCT
        last = runs[-1] if runs else None
        if last and (last.until, last.owner, last.kind) == (begin, owner, kind):
            last.until = begin + bin_s
            last.sums.add(sums)
        else:
            runs.append(Run(begin, begin + bin_s, owner, kind, sums))
    return tuple(run.occupancy(least_known) for run in runs)


def used_pct(sums: Cell, least_known: float) -> float | None:
    """Of the held time whose use is known. None: too little of it is known."""
    known = sums.held - sums.unknown
    if known <= 0 or known < least_known * sums.held:
        return None
    return 100 * min(1.0, sums.used / known)
