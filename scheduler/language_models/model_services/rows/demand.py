"""Rows of earlier weeks -> the number of instances that a service will need."""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timedelta

from django.db.models import Min, QuerySet, Sum
from django.urls import reverse

from monitor.gpus.hosts import rows as hosts
from scheduler.facts.blockers import Tier
from scheduler.facts.jobs import JobState, Outcome
from scheduler.facts.model_services import InstanceState, PredictionMode
from scheduler.facts.prompts import Instance, PromptStatus
from scheduler.language_models.model_services.policy.lifecycle import (
    DEMAND_FOR,
    Demand,
    Prediction,
    predict,
)
from scheduler.language_models.model_services.rows.services import WEEKS, expected_boot_s
from scheduler.language_models.prompts import policy
from scheduler.models import Job, ModelInstance, ModelService, ModelUse, Prompt

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


# Rows of the queues that decide about evictions: jobs and prompts that wait.

NEWEST = 50


def _scripts() -> QuerySet[Job]:
    waiting = Job.objects.filter(state=JobState.QUEUED.value, held="", model_service=None)
    return waiting.filter(gpus__gt=0)


def waiting_scripts() -> int:
    """How many jobs wait for a GPU."""
    return _scripts().count()


def waiting_prompts(now: datetime) -> int:
    """Queued prompts, and services with requests of the endpoint that no instance could take."""
    enabled = ModelService.objects.filter(enabled=True)
    requests = enabled.filter(wanted_at__gte=now - DEMAND_FOR).count()
    return requests + Prompt.objects.filter(status=PromptStatus.QUEUED.value).count()


def in_need(most: int) -> dict[int, int]:
    """The first jobs that wait only for GPUs that others hold: their place in the queue, by id."""
    rows = _scripts().exclude(blockers=[]).order_by("-priority", "submitted_at", "id")
    places: dict[int, int] = {}
    for id_, blockers in rows.values_list("id", "blockers")[: most * 4]:
        if (
            all(blocker.get("tier") == Tier.CONTENTION for blocker in blockers)
            and len(places) < most
        ):
            places[id_] = len(places)
    return places


def average_script_s() -> float | None:
    """The mean run time of the newest jobs on GPUs; None = none has ended."""
    ended = Job.objects.filter(
        state=JobState.FINISHED.value,
        outcome=Outcome.SUCCEEDED.value,
        gpus__gt=0,
        model_service=None,
        started_at__isnull=False,
    )
    times = ended.order_by("-id").values_list("started_at", "ended_at")[:NEWEST]
    took = [(end - begin).total_seconds() for begin, end in times if begin and end]
    return max(0.0, sum(took)) / len(took) if took else None


# Models whose instances are on other hosts.


# The endpoint of a host starts with its first model, and is known to other hosts a little later.
ENDPOINT_COMES = timedelta(seconds=15)


def elsewhere(row: ModelService, host: str, now: datetime) -> tuple[str, tuple[Instance, ...]]:
    """Where the model runs, if only hosts other than `host` have ready instances; else "".

    With the endpoints there, the one with the fewest requests first. row: one of `services`. An
    instance that boots may still come to this host, and the endpoint of one that has just become
    ready may still come.
    """
    opened: list[ModelInstance] = row.open_ones  # type: ignore[attr-defined]
    states = {(instance.host, instance.state) for instance in opened}
    names = {at for at, state in states if state == InstanceState.READY.value}
    is_booting = any(state == InstanceState.BOOTING.value for _, state in states)
    if not names or is_booting or names & {"", host}:
        return "", ()
    load: Counter[str] = Counter()
    for instance in opened:
        load[instance.host] += instance.in_flight
    facts = {fact.name: fact for fact in hosts.registered(names)}
    path = reverse("model", args=[row.name])
    pages = {
        name: f"{facts[name].address.rstrip('/')}{path}"
        if name in facts and facts[name].address
        else ""
        for name in sorted(names)
    }
    endpoints = tuple(
        Instance(id=0, url=f"{facts[name].models_address.rstrip('/')}/v1", host=name)
        for name in sorted(facts, key=lambda name: (load[name], name))
        if facts[name].models_address
    )
    ready = [each.ready_at for each in opened if each.state == InstanceState.READY.value]
    if not endpoints and all(at is not None and now - at < ENDPOINT_COMES for at in ready):
        return "", ()
    return policy.elsewhere(row.name, pages, is_passed_on=bool(endpoints)), endpoints
