"""A person's limits with what they use of each, as pages, the admin and REST show them."""

from __future__ import annotations

from dataclasses import dataclass

from monitor.formats import gib
from scheduler.pages.share_table import Line
from scheduler.units import size


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One limit. used and most are numbers in `unit`; most None = no limit.

    `name` is the quota's field. committed: what is promised to running jobs on top of `used`.
    """

    name: str
    label: str
    used: float
    most: float | None
    unit: str = ""
    committed: float = 0.0

    @property
    def used_text(self) -> str:
        return self._text(self.used)

    @property
    def most_text(self) -> str:
        """What is allowed, or that nothing bounds it."""
        if self.most is None:
            return "no limit"
        return size(int(self.most)) if self.unit == "bytes" else self._text(self.most)

    @property
    def pct(self) -> float | None:
        """Of the limit; never more than 100. None = there is no limit."""
        return None if self.most is None else _pct(self.used, self.most)

    @property
    def committed_pct(self) -> float:
        """What promises add to the bar."""
        if self.most is None:
            return 0.0
        return _pct(self.used + self.committed, self.most) - _pct(self.used, self.most)

    @property
    def is_full(self) -> bool:
        return self.most is not None and self.used + self.committed >= self.most

    def _text(self, value: float) -> str:
        if self.unit == "bytes":
            return gib(int(value))
        if self.unit == "%":
            return f"{value:.3g} %"
        return f"{value:.0f}" if self.unit == "min" else f"{value:.3g}"


def figures(line: Line) -> tuple[Figure, ...]:
    """GPU-minutes first; then what may be held at a time."""
    standing, quota = line.standing, line.quota
    budget = standing.budget
    return (
        Figure(
            name="gpu_minutes",
            label="GPU-minutes today",
            used=budget.spent if budget else line.spent_min,
            most=quota.gpu_minutes,
            unit="min",
            committed=budget.committed if budget else 0.0,
        ),
        Figure(name="gpus", label="GPUs", used=standing.gpus, most=quota.gpus),
        Figure(name="jobs", label="Running jobs", used=standing.jobs, most=quota.jobs),
        Figure(
            name="memory_bytes",
            label="GPU memory",
            used=standing.memory_bytes,
            most=quota.memory_bytes,
            unit="bytes",
        ),
        Figure(name="queued", label="Waiting jobs", used=line.waiting, most=quota.queued),
    )


def share(line: Line) -> Figure:
    """What they take of all GPUs, of what they are entitled to: no limit while nobody waits."""
    now = 100 * (line.now or 0.0)
    return Figure(name="share_pct", label="Share", used=now, most=line.quota.share_pct, unit="%")


def _pct(used: float, most: float) -> float:
    return min(100.0, 100 * used / most) if most > 0 else 100.0
