"""What somebody used of a GPU of late, as sums that grow: any window is a difference."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from operator import itemgetter

# Sums up to an instant: used, held, known, memory byte-seconds, of these known.
Point = tuple[float, float, float, float, float, float]

HORIZON_S = 2 * 3600.0
# The newest points are kept as they come, older ones this far apart.
FINE, COARSE_S = 40, 30.0
_time = itemgetter(0)


@dataclass(frozen=True, slots=True)
class Used:
    """Sums over a stretch of time of `span_s`."""

    span_s: float
    sm_s: float
    held_s: float
    known_s: float
    memory_byte_s: float
    memory_known_s: float

    @property
    def pct(self) -> float | None:
        """The mean share of the GPU's time while it was known."""
        return 100 * self.sm_s / self.known_s if self.known_s > 0 else None

    @property
    def coverage(self) -> float:
        """The known part (0..1) of the whole stretch: not there is not known, either."""
        return min(1.0, self.known_s / self.span_s) if self.span_s > 0 else 0.0

    @property
    def memory_coverage(self) -> float:
        """The part (0..1) of the whole stretch in which the memory was known."""
        return min(1.0, self.memory_known_s / self.span_s) if self.span_s > 0 else 0.0

    @property
    def memory_bytes(self) -> float | None:
        """The mean while it was known."""
        return self.memory_byte_s / self.memory_known_s if self.memory_known_s > 0 else None


@dataclass(slots=True)
class Series:
    """The points of one process, or of all that a person or job has on one GPU."""

    points: list[Point] = field(default_factory=list)

    @property
    def begin(self) -> float:
        return self.points[0][0] if self.points else 0.0

    @property
    def end(self) -> float:
        return self.points[-1][0] if self.points else 0.0

    @property
    def span_s(self) -> float:
        return self.end - self.begin

    def add(self, t: float, passed: float, more: Used) -> None:
        """What was used in the `passed` seconds up to `t`."""
        points = self.points
        if not points:
            points.append((t - passed, 0.0, 0.0, 0.0, 0.0, 0.0))
        last = points[-1]
        if t <= last[0]:
            return
        points.append(
            (
                t,
                last[1] + more.sm_s,
                last[2] + more.held_s,
                last[3] + more.known_s,
                last[4] + more.memory_byte_s,
                last[5] + more.memory_known_s,
            )
        )
        self._thin(t)

    def over(self, since: float, until: float | None = None) -> Used:
        """The sums between two instants, of what there is between them."""
        if not self.points:
            return Used(0, 0, 0, 0, 0, 0)
        until = self.end if until is None else min(until, self.end)
        since = max(since, self.begin)
        low, high = self._at(since), self._at(until)
        sums = [b - a for a, b in zip(low[1:], high[1:], strict=True)]
        return Used(max(0.0, until - since), *sums)

    def last(self, seconds: float) -> Used:
        return self.over(self.end - seconds)

    def segments(self, since: float = 0.0) -> Iterator[tuple[float, Used]]:
        """(begin, sums) between each two points, the oldest first."""
        points = self.points
        first = max(0, bisect_right(points, since, key=_time) - 1)
        for a, b in zip(points[first:], points[first + 1 :], strict=False):
            sums = [y - x for x, y in zip(a[1:], b[1:], strict=True)]
            yield a[0], Used(b[0] - a[0], *sums)

    def _at(self, t: float) -> Point:
        """The sums at an instant, by a straight line between two points."""
        points = self.points
        place = bisect_right(points, t, key=_time)
        if place <= 0:
            return points[0]
        if place >= len(points):
            return points[-1]
        a, b = points[place - 1], points[place]
        part = (t - a[0]) / (b[0] - a[0])
        if part == 0:
            return a
        values = [x + (y - x) * part for x, y in zip(a, b, strict=True)]
        return (values[0], values[1], values[2], values[3], values[4], values[5])

    def _thin(self, now: float) -> None:
        points = self.points
        place = len(points) - FINE
        if place > 1 and points[place][0] - points[place - 2][0] <= COARSE_S:
            del points[place - 1]
        if points[0][0] < now - HORIZON_S - 10 * COARSE_S:
            keep = bisect_right(points, now - HORIZON_S, key=_time) - 1
            del points[: max(0, keep)]


def stretch(
    series: Series, pct: float, floor_pct: float, coverage: float
) -> tuple[float, Used] | None:
    """Since when the mean has been above `pct`: (begin, sums since then).

    It begins with the oldest segment of at least `floor_pct` from which on the mean up to now is
    above: a blip does not end it, and a burst does not make what was before a part of it. Of all
    of it at least `coverage` (0..1) has to be known.
    """
    for begin, used in series.segments():
        here = used.pct
        if here is None or here < floor_pct:
            continue
        since = series.over(begin)
        if since.pct is not None and since.pct > pct and since.coverage >= coverage:
            return begin, since
    return None


def quiet_since(series: Series, pct: float, coverage: float) -> float | None:
    """Since when the mean has been below `pct`; None when it is not."""
    for begin, used in series.segments():
        here = used.pct
        if here is None or here >= pct:
            continue
        since = series.over(begin)
        if since.pct is not None and since.pct < pct and since.coverage >= coverage:
            return begin
    return None
