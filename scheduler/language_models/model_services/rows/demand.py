"""Rows of earlier weeks -> the number of instances that a service will need."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.db.models import Min, Sum

from scheduler.facts.model_services import PredictionMode
from scheduler.language_models.model_services.policy.prediction import Demand, Prediction, predict
from scheduler.language_models.model_services.rows import WEEKS, expected_boot_s
from scheduler.models import ModelService, ModelUse

# Instances are ready this long before the hour begins.
AHEAD = timedelta(seconds=60)
HOUR, WEEK = timedelta(hours=1), timedelta(weeks=1)


def prediction(service: ModelService, now: datetime) -> Prediction | None:
    """For this hour, or for the next one if instances must boot now. None: no demand is known."""
    ready_at = now + timedelta(seconds=expected_boot_s(service)) + AHEAD
    chosen = [_of_hour(service, hour) for hour in sorted({_hour(now), _hour(ready_at)})]
    return max(
        (predicted for predicted in chosen if predicted is not None),
        key=lambda predicted: predicted.instances,
        default=None,
    )


def automatic(now: datetime) -> dict[int, int]:
    """The predicted instances of the services that follow the prediction, by service."""
    mode = PredictionMode.AUTOMATIC.value
    services = ModelService.objects.filter(enabled=True, prediction=mode)
    made = {row.pk: prediction(row, now) for row in services.prefetch_related("boots")}
    return {id_: predicted.instances for id_, predicted in made.items() if predicted is not None}


def _of_hour(service: ModelService, hour: datetime) -> Prediction | None:
    answer_s = _answer_s(service, hour)
    demand = Demand(weeks=_weeks(service, hour), answer_s=answer_s)
    return predict(demand, service.concurrency, service.min_instances, service.max_instances)


def _weeks(service: ModelService, hour: datetime) -> list[float]:
    """Requests in the same hour of each of the last weeks in which the service was in use."""
    began = service.hours.aggregate(first=Min("at"))["first"]
    hours = [hour - n * WEEK for n in range(1, WEEKS + 1)]
    hours = [at for at in hours if began is not None and at >= began]
    counts = dict(service.hours.filter(at__in=hours).values_list("at", "requests"))
    return [float(counts.get(at, 0)) for at in hours]


def _answer_s(service: ModelService, now: datetime) -> float | None:
    rows = ModelUse.objects.filter(model=service.name, hour_at__gte=now - WEEK)
    sums = rows.aggregate(s=Sum("answer_s"), n=Sum("requests"), failed=Sum("failed"))
    answered = (sums["n"] or 0) - (sums["failed"] or 0)
    return sums["s"] / answered if answered > 0 else None


def _hour(at: datetime) -> datetime:
    return at.replace(minute=0, second=0, microsecond=0)
