"""The sparkline of a GPU's last hour. The database computes the averages."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django.db.models import Avg

from monitor.models import Sample
from monitor.usage.history import charts
from monitor.usage.rows.rollups import start_of

SPARK_S, SPARK_STEP_S = 3600, 60


@dataclass(frozen=True, slots=True)
class SparklinePath:
    """Paths of a 60-minute sparkline."""

    line: str
    area: str


def draw(uuid: str, now: datetime) -> SparklinePath:
    until = int(now.timestamp())
    since = until - SPARK_S
    samples = Sample.objects.filter(gpu_id=uuid, t__gte=since, t__lte=until)
    minutes = samples.annotate(start=start_of(SPARK_STEP_S)).order_by("start").values("start")
    means = minutes.annotate(mean=Avg("utilization_pct")).values_list("start", "mean")
    points = [(start + SPARK_STEP_S / 2, mean) for start, mean in means]
    return SparklinePath(*charts.spark(points, since, until, SPARK_STEP_S))
