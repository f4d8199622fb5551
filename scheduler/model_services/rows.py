"""Rows of model services and their instances; what the proxy and the prompts may call."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from django.db.models import F, Prefetch, QuerySet

from monitor.runtime.rows.wakeups import wake
from scheduler.facts.model_services import (
    ENDED,
    InstanceFact,
    InstanceState,
    Role,
    ServiceFact,
    shipped_boot_s,
)
from scheduler.models import ModelInstance, ModelService

MIB = 1024**2
ENDED_STATES = tuple(sorted(state.value for state in ENDED))


def services() -> QuerySet[ModelService]:
    """All services by name, each with its instances that have not ended in `open_ones`."""
    opened = open_instances().select_related("job")
    return ModelService.objects.order_by("name").prefetch_related(
        Prefetch("instances", opened, to_attr="open_ones"), "boots"
    )


def open_instances() -> QuerySet[ModelInstance]:
    """Instances that have not ended, the oldest first."""
    return ModelInstance.objects.exclude(state__in=ENDED_STATES).order_by("pk")


def ready_instances(service: ModelService) -> list[ModelInstance]:
    """The instances that take requests, the least busy first."""
    rows = service.instances.filter(state=InstanceState.READY.value)
    return list(rows.select_related("service").order_by("in_flight", "pk"))


def request_instance(service_id: int, now: datetime) -> bool:
    """Record that a request waits for an instance, and wake the scheduler.

    Call it again while the request waits: a demand counts for a minute. False: there is no such
    service, or it is disabled.
    """
    rows = ModelService.objects.filter(pk=service_id, enabled=True)
    is_recorded = bool(rows.update(wanted_at=now))
    if is_recorded:
        wake("scheduler")
    return is_recorded


def request_begun(instance_id: int, now: datetime) -> bool:
    """Count a request of the instance. False: it takes none, or is at its limit."""
    ready = ModelInstance.objects.filter(pk=instance_id, state=InstanceState.READY.value)
    below_limit = ready.filter(in_flight__lt=F("service__concurrency"))
    return bool(below_limit.update(in_flight=F("in_flight") + 1, last_request_at=now))


def request_ended(instance_id: int, now: datetime, *, is_answered: bool) -> None:
    """The end of a request that was begun."""
    rows = ModelInstance.objects.filter(pk=instance_id)
    rows.filter(in_flight__gt=0).update(in_flight=F("in_flight") - 1)
    column = "tasks_completed" if is_answered else "failures"
    rows.update(last_request_at=now, **{column: F(column) + 1})


def service_fact(row: ModelService) -> ServiceFact:
    return ServiceFact(
        id=row.pk,
        name=row.name,
        enabled=row.enabled,
        gpus=row.gpus,
        memory_bytes=None if row.memory_mib is None else row.memory_mib * MIB,
        min_instances=row.min_instances,
        max_instances=row.max_instances,
        concurrency=row.concurrency,
        role=Role(row.role),
        pin=row.pin,
        keep_alive_s=row.keep_alive_s,
        min_residency_s=row.min_residency_s,
        wanted_at=row.wanted_at,
        retry_at=row.retry_at,
        expected_boot_s=expected_boot_s(row),
    )


def expected_boot_s(row: ModelService, gpu_model: str | None = None) -> float:
    """The learned boot seconds on this GPU model, else the worst learned ones, else as shipped."""
    boots = [boot for boot in row.boots.all() if boot.boot_s is not None]
    same = [boot.boot_s or 0.0 for boot in boots if boot.gpu_model == gpu_model]
    known = same or [boot.boot_s or 0.0 for boot in boots]
    return max(known, default=shipped_boot_s(row.name))


def instance_fact(row: ModelInstance) -> InstanceFact:
    return InstanceFact(
        id=row.pk,
        service_id=row.service_id,
        state=InstanceState(row.state),
        since=row.since,
        job_id=row.job_id,
        host=row.host,
        gpu_uuids=tuple(row.gpu_uuids),
        in_flight=row.in_flight,
        memory_bytes=row.memory_bytes,
        started_boot_at=row.started_boot_at,
        ready_at=row.ready_at,
        last_request_at=row.last_request_at,
        answered_at=row.answered_at,
    )


def instance_facts(rows: Iterable[ModelInstance]) -> list[InstanceFact]:
    return [instance_fact(row) for row in rows]
