"""Sparklines of the last hour. The database computes the averages."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from django.db.models import Avg

from monitor.models import Sample
from monitor.usage.history import charts
from monitor.usage.rows.rollups import start_of

SPARK_S, SPARK_STEP_S = 3600, 60
# The maximum age of a sparkline, and how many are redrawn at a time.
SPARK_FRESH_S, SPARKS_AT_ONCE = 60.0, 2


@dataclass(frozen=True, slots=True)
class SparklinePath:
    """Paths of a 60-minute sparkline."""

    line: str
    area: str


class SparklineCache:
    """Sparklines of all GPUs, redrawn a few at a time."""

    def __init__(self) -> None:
        self._drawn: dict[str, tuple[float, SparklinePath]] = {}

    def get(self, uuids: Iterable[str], now: datetime) -> dict[str, SparklinePath]:
        """A sparkline for each GPU."""
        gpu_uuids, t = list(uuids), now.timestamp()
        missing = [u for u in gpu_uuids if u not in self._drawn]
        old = [u for u in gpu_uuids if u in self._drawn and self._age(u, t) > SPARK_FRESH_S]
        old.sort(key=lambda u: -self._age(u, t))
        # After a pause all sparklines are old: redraw all of them.
        due = old if len(old) == len(gpu_uuids) else old[:SPARKS_AT_ONCE]
        for uuid in [*missing, *due]:
            self._drawn[uuid] = (t, draw(uuid, now))
        return {uuid: self._drawn[uuid][1] for uuid in gpu_uuids}

    def _age(self, uuid: str, t: float) -> float:
        return t - self._drawn[uuid][0]


def draw(uuid: str, now: datetime) -> SparklinePath:
    until = int(now.timestamp())
    since = until - SPARK_S
    samples = Sample.objects.filter(gpu_id=uuid, t__gte=since, t__lte=until)
    minutes = samples.annotate(start=start_of(SPARK_STEP_S)).order_by("start").values("start")
    means = minutes.annotate(mean=Avg("utilization_pct")).values_list("start", "mean")
    points = [(start + SPARK_STEP_S / 2, mean) for start, mean in means]
    return SparklinePath(*charts.spark(points, since, until, SPARK_STEP_S))


# The page and the live hub share one cache, so they show the same sparklines.
sparks = SparklineCache()
