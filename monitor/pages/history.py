"""Sparklines of the last hour; the database does the averaging."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from django.db.models import Avg

from monitor.models import Sample
from monitor.pages import charts
from monitor.rollups import start_of

SPARK_S, SPARK_STEP_S = 3600, 60
# How old a sparkline may get, and how many are drawn anew in one go once all have been drawn.
SPARK_FRESH_S, SPARKS_AT_ONCE = 60.0, 2


@dataclass(frozen=True, slots=True)
class Spark:
    """Paths of a 60-minute sparkline."""

    line: str
    area: str


class Sparks:
    """Sparklines of all GPUs, drawn anew now and then, a few at a time."""

    def __init__(self) -> None:
        self._drawn: dict[str, tuple[float, Spark]] = {}

    def get(self, uuids: Iterable[str], now: datetime) -> dict[str, Spark]:
        """A sparkline for each GPU, none older than it may get."""
        wanted, t = list(uuids), now.timestamp()
        missing = [u for u in wanted if u not in self._drawn]
        old = [u for u in wanted if u in self._drawn and self._age(u, t) > SPARK_FRESH_S]
        old.sort(key=lambda u: -self._age(u, t))
        # After a pause all are old: then they are as good as missing.
        due = old if len(old) == len(wanted) else old[:SPARKS_AT_ONCE]
        for uuid in [*missing, *due]:
            self._drawn[uuid] = (t, draw(uuid, now))
        return {uuid: self._drawn[uuid][1] for uuid in wanted}

    def _age(self, uuid: str, t: float) -> float:
        return t - self._drawn[uuid][0]


def draw(uuid: str, now: datetime) -> Spark:
    until = int(now.timestamp())
    since = until - SPARK_S
    samples = Sample.objects.filter(gpu_id=uuid, t__gte=since, t__lte=until)
    minutes = samples.annotate(start=start_of(SPARK_STEP_S)).order_by("start").values("start")
    means = minutes.annotate(mean=Avg("utilization_pct")).values_list("start", "mean")
    points = [(start + SPARK_STEP_S / 2, mean) for start, mean in means]
    return Spark(*charts.spark(points, since, until, SPARK_STEP_S))


# One for the process: the page and the live hub show the same ones.
sparks = Sparks()
