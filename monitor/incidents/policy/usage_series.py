"""Recent use of a GPU as cumulative sums, so that any window is a difference of two points."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from operator import itemgetter

# Cumulative sums at an instant: seconds used, held and known; memory byte-seconds; their known
# seconds.
Point = tuple[float, float, float, float, float, float]

HORIZON_S = 2 * 3600.0
# The newest points are kept at full resolution, older ones this far apart.
FINE, COARSE_S = 40, 30.0
_time = itemgetter(0)


@dataclass(frozen=True, slots=True)
class UsagePoint:
    """Sums over a period of `span_s` seconds."""

    span_s: float
    sm_s: float
    held_s: float
    known_s: float
    memory_byte_s: float
    memory_known_s: float

    @property
    def pct(self) -> float | None:
        """The mean share of the GPU's time while it was known.

        Samples of the driver arrive late, so a short period may contain more than its own time.
        """
        known_s = self.known_s
        if known_s <= 0:
            return None
        return 100 * self.sm_s / known_s if self.sm_s < known_s else 100.0

    @property
    def coverage(self) -> float:
        """The known part (0..1) of the whole period.

        Time in which the process was absent is not known.
        """
        return min(1.0, self.known_s / self.span_s) if self.span_s > 0 else 0.0

    @property
    def memory_coverage(self) -> float:
        """The part (0..1) of the whole period in which the memory was known."""
        return min(1.0, self.memory_known_s / self.span_s) if self.span_s > 0 else 0.0

    @property
    def memory_bytes(self) -> float | None:
        """The mean while it was known; None: never."""
        return self.memory_byte_s / self.memory_known_s if self.memory_known_s > 0 else None


@dataclass(slots=True)
class Series:
    """The points of one process, or of all processes of a user or job on one GPU."""

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

    def add(self, t: float, passed: float, more: UsagePoint) -> None:
        """Add the use in the `passed` seconds up to `t`."""
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

    def amend(self, more: UsagePoint) -> None:
        """Add use that was reported late to the newest sums, without changing their time."""
        if self.points:
            t, sm_s, held_s, known_s, memory_byte_s, memory_known_s = self.points[-1]
            self.points[-1] = (
                t,
                sm_s + more.sm_s,
                held_s,
                known_s,
                memory_byte_s + more.memory_byte_s,
                memory_known_s,
            )

    def over(self, since: float, until: float | None = None) -> UsagePoint:
        """The sums between two instants, as far as there are points."""
        points = self.points
        if not points:
            return UsagePoint(0, 0, 0, 0, 0, 0)
        low, high = points[0], points[-1]
        if since > low[0]:
            low = self._at(since)
        else:
            since = low[0]
        if until is not None and until < high[0]:
            high = self._at(until)
        else:
            until = high[0]
        return _between(low, high, max(0.0, until - since))

    def last(self, seconds: float) -> UsagePoint:
        return self.over(self.end - seconds)

    def segments(self, since: float = 0.0) -> Iterator[tuple[float, UsagePoint]]:
        """(begin, sums) between each two consecutive points, oldest first."""
        points = self.points
        first = max(0, bisect_right(points, since, key=_time) - 1)
        for a, b in zip(points[first:], points[first + 1 :], strict=False):
            yield a[0], _between(a, b, b[0] - a[0])

    def _at(self, t: float) -> Point:
        """The sums at an instant, by linear interpolation."""
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


def _between(low: Point, high: Point, span_s: float) -> UsagePoint:
    """The difference of two points. The rules call it often, so it is written out."""
    return UsagePoint(
        span_s,
        high[1] - low[1],
        high[2] - low[2],
        high[3] - low[3],
        high[4] - low[4],
        high[5] - low[5],
    )


def above_since(
    series: Series, pct: float, floor_pct: float, coverage: float
) -> tuple[float, UsagePoint] | None:
    """Since when the mean has been above `pct`: (begin, sums since then). None: it is not above.

    The begin is the oldest segment of at least `floor_pct` since which the mean is above `pct`. So
    a short pause does not end it, and a burst does not extend it to earlier times. At least
    `coverage` (0..1) of the whole time must be known.
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
    """Since when the mean has been below `pct`; None: it is not below."""
    for begin, used in series.segments():
        here = used.pct
        if here is None or here >= pct:
            continue
        since = series.over(begin)
        if since.pct is not None and since.pct < pct and since.coverage >= coverage:
            return begin
    return None
